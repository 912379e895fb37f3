# jobs.sh - the processes of a test end with it, also if it is interrupted. A job in the background, or one that
# `timeout` has put into a process group of its own, would otherwise train on.
# Lists of processes are split at blanks on purpose.
# shellcheck shell=sh disable=SC2086

# Prints the process $1 and all processes below it.
tree() {
    set -- "$1" "$1"
    while [ "$2" ]; do
        echo $2
        set -- "$1" "$(ps -o pid= --ppid "$(echo $2 | tr ' ' ,)" 2>/dev/null)"
    done
}
# at_end FILE: when the script ends, its processes are killed and FILE, which may be a folder, is removed
at_end() {
    removed_at_end=$1
    trap 'kill -9 $(tree $$ | grep -vx $$) 2>/dev/null; rm -rf "$removed_at_end"' EXIT
    trap 'exit 1' HUP INT TERM
}
