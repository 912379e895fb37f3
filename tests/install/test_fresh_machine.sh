#!/bin/sh
# test_fresh_machine.sh BUILD [GOAL] [ARGS] - runs README's two commands, one after the other, on a system without any of
# the packages: debootstrap makes a Debian that has only `make` in addition. After the first command, mpirun must be able
# to start the trainer. GOAL replaces `test`; ARGS goes to `make compare`. Without root, debootstrap or the network the
# test is skipped.
# Last line: N passed, N failed[, N skipped].
set -u
B=$1 goal=${2:-test} arguments=${3:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
skip() { echo "skipped: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then skip "needs root and mount namespaces"; fi
PATH=$PATH:/usr/sbin:/sbin
command -v debootstrap >/dev/null 2>&1 || skip "debootstrap is not installed"
mkdir -p "$B" && fresh=$(cd "$B" && pwd)/fresh_machine.$$ log=$(cd "$B" && pwd)/fresh_machine.txt
trap 'rm -rf "$fresh"' EXIT
debootstrap --variant=minbase --include=make "${RELEASE:-bookworm}" "$fresh" >"$log" 2>&1 || skip "debootstrap failed: $(tail -n 1 "$log")"
cp /etc/resolv.conf "$fresh/etc/" 2>/dev/null
mkdir "$fresh/tree"
tar -C "$root" --exclude=./build --exclude=./.git --exclude=./train_gpt2_zero --exclude=./zero_ckpt --exclude=./zero_plan -cf - . | tar -C "$fresh/tree" -xf -

passed=0 failed=0
check() { if [ "$1" = "$2" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $3: $1, expected $2"; tail -n 20 "$log"; fi; }
# The command runs in a mount namespace, so that its mounts end with it.
inside() { # COMMAND
    # shellcheck disable=SC2016 # they are the inner shell's
    unshare -m sh -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/dev/shm" &&
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb SEED="$1" chroot "$0" sh -c "cd /tree && $2"' \
        "$fresh" "${SEED:-1}" "$1" >"$log" 2>&1 </dev/null
}
inside 'command -v cc mpicc mpirun c++'
check "$(wc -c <"$log" | tr -d ' ')" 0 "nothing is there before"
inside "make deps compare ARGS='$arguments'"
check $? 0 "make deps compare"
inside 'mpirun --allow-run-as-root --oversubscribe -np 2 ./train_gpt2_zero -e char:2x32x2 -t 16 -b 2 -x 3 -v -1 -g 0 -z 3'
check "$? $(grep -c '^step .*3/3\|^weights ' "$log")" "0 2" "mpirun -np 2 ./train_gpt2_zero"
inside "make deps $goal"
check $? 0 "make deps $goal: $(grep -E '^[0-9]+ passed' "$log" | tail -n 1)"
inside "sh tests/hosts/test_host_groups.sh build"
check $? 0 "host-groups: $(tail -n 1 "$log")"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
