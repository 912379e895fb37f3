#!/bin/sh
# test_page.sh BUILD - the page of a run: test_page.py reads it back; the trainer's own log and comparison make
# one; headless Chromium shows it at a phone's width and a desk's, light and dark, without an error and without
# scrolling sideways; the pictures are left in BUILD/page.shots. Last line: N passed, N failed[, N skipped].
set -u
B=$1
cd "$(dirname "$0")/../.." || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0 skipped=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
skip() { skipped=$((skipped + 1)); echo "skipped $1"; }

if command -v python3 >/dev/null 2>&1; then
    python3 tests/report/test_page.py "$B" "$scratch" >"$scratch/out" 2>&1
    code=$?
    grep -v ' passed, ' "$scratch/out"
    line=$(grep ' passed, ' "$scratch/out" | tail -n 1)
    passed=$((passed + ${line%% passed*})) failed=$((failed + code))
else skip "reading the page back: python3 is not installed"; fi

# ---- what the trainer writes ----
trainer=$B/unmeasured/train_gpt2_zero
data="-i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin"
small="-e char:2x32x2 -t 16 -b 4 -u 0"
# shellcheck disable=SC2086 # lists of arguments
{
    "$trainer" $data $small -pn 2 -z 2 -x 30 -v 10 -m 2 -g 0 -o "$scratch/log" >"$scratch/out" 2>&1
    "$trainer" $data $small -pn 2 -z 0,1,2,3 -x 16 -csv "$scratch/compare.csv" >>"$scratch/out" 2>&1
}
set -- --log "$scratch/log/main.log" --csv "$scratch/compare.csv"
if "$trainer" --help all 2>/dev/null | grep -q -e '--trace'; then
    # shellcheck disable=SC2086
    "$trainer" $data $small -pn 2 -z 3 -x 6 -v -1 -g 0 -tr "$scratch/trace.json" >>"$scratch/out" 2>&1
    set -- "$@" --trace "$scratch/trace.json"
fi
"$B/page" "$@" --out "$scratch/report.html" >>"$scratch/out" 2>&1
check "$([ -s "$scratch/report.html" ] && echo 1)" "a page of the trainer's own files: $(tail -n 3 "$scratch/out")"
check "$(grep -q '<h1>A run with ZeRO: char:2x32x2, 2 ranks</h1>' "$scratch/report.html" && echo 1)" "the model and the ranks of the page"
check "$(grep -q "^flags .* -e char:2x32x2 .* -o $scratch/log" "$scratch/log/main.log.note" && echo 1)" "the note next to main.log: $(cat "$scratch/log/main.log.note")"
check "$(grep -q "^commit [0-9a-f]\{7,\}\|^commit unknown" "$scratch/compare.csv.note" && echo 1)" "the note next to the comparison: $(cat "$scratch/compare.csv.note")"
check "$(grep -q 'id="loss"' "$scratch/report.html" && grep -q 'id="memory"' "$scratch/report.html" && echo 1)" "its figures"

cp "$scratch/log/main.log" "$scratch/noted.log"
printf '%s\n' "s:30 products:00ff t:1.0" "s:30 auto:-z,2,-b,4 t:1.0" "s:30 ranks:4 t:1.0" >>"$scratch/noted.log"
"$B/page" --log "$scratch/noted.log" --out "$scratch/noted.html" >"$scratch/out" 2>&1
check "$([ -s "$scratch/noted.html" ] && echo 1)" "a page of a log with products, chosen flags and new ranks: $(tail -n 1 "$scratch/out")"

# ---- a browser ----
browser=
for each in chromium chromium-browser google-chrome chrome; do
    [ "$browser" ] || browser=$(command -v $each)
done
show() { # ARGUMENTS: a browser of its own, without a network
    HOME=$scratch timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$scratch/profile" --host-resolver-rules='MAP * ~NOTFOUND' --enable-logging=stderr --log-level=0 "$@" 2>"$scratch/errors"
}
# A page that asks how wide the report is, and where each figure ends.
probe() { # WIDTH
    cat >"$scratch/probe.html" <<HTML
<iframe id=f src=report.html style="width:$1px;height:3000px;border:0"></iframe>
<pre id=out>none</pre>
<script>
document.getElementById('f').onload = function () {
    var d = this.contentDocument, all = 0;
    d.querySelectorAll('svg.figure').forEach(function (s) { if (s.getBoundingClientRect().height > 40) all++; });
    document.getElementById('out').textContent = 'width ' + d.documentElement.scrollWidth + ' figures ' + all;
};
</script>
HTML
}
if [ "$browser" ] && show --dump-dom about:blank >/dev/null; then
    mkdir -p "$B/page.shots"
    figures=$(grep -c '<svg' "$scratch/report.html")
    for width in 390 1200; do
        probe $width
        show --allow-file-access-from-files --virtual-time-budget=3000 --dump-dom "file://$scratch/probe.html" >"$scratch/dom"
        check "$(grep -q ">width $width figures $figures<" "$scratch/dom" && echo 1)" \
            "at $width px: $(grep -o 'width [0-9]* figures [0-9]*' "$scratch/dom" || echo no answer), expected $figures figures and no scrolling sideways"
        for dark in 0 1; do
            name=$B/page.shots/$width-$([ $dark = 0 ] && echo dark || echo light).png
            rm -f "$name"
            show --blink-settings=preferredColorScheme=$dark --window-size=$width,2600 --screenshot="$name" "file://$scratch/report.html" >/dev/null
            check "$([ "$(wc -c <"$name" 2>/dev/null || echo 0)" -gt 20000 ] && echo 1)" "no picture at $width px"
            check "$(grep -q CONSOLE "$scratch/errors" || echo 1)" "the browser says: $(grep CONSOLE "$scratch/errors" | head -n 1)"
        done
        check "$(cmp -s "$B/page.shots/$width-dark.png" "$B/page.shots/$width-light.png" || echo 1)" "light and dark look alike at $width px"
    done
else skip "the page in a browser: neither chromium nor chrome is installed"; fi
more=
[ $skipped = 0 ] || more=", $skipped skipped"
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
