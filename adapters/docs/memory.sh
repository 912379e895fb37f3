#!/bin/sh
# memory.sh PLANNER - draws adapters/docs/memory.svg: memory of a rank for GPT-2 1558M in bf16, by the number of ranks
# and the stage. PLANNER is the program zero_plan, which computes it. The picture goes to stdout.
set -u
csv=$(mktemp)
trap 'rm -f "$csv"' EXIT
for ranks in 1 2 8 64; do
    "$1" -e gpt2:d48 -dt bf16 -t 1024 -b 1 -pn $ranks --memory 80G -csv "$csv" >/dev/null || exit 1
    awk -F, '$2 == "device" { print $3, $1, ($5 + $6 + $7 + $8) / 1073741824 }' "$csv"
done | awk '
BEGIN {
    split("#9aa3af #2a78d6 #1baf7a #eda100", colour, " ")
    split("stage 0 (DDP)|stage 1|stage 2|stage 3", name, "|")
    left = 78; wide = 400; largest = 25
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"560\" height=\"384\" viewBox=\"0 0 560 384\" role=\"img\" aria-label=\"Memory of a rank by ranks and stage\">"
    print "<rect width=\"560\" height=\"384\" fill=\"#ffffff\"/>"
    print "<g font-family=\"sans-serif\" font-size=\"12\" fill=\"#1d2129\">"
    print "<text x=\"12\" y=\"20\" font-size=\"14\">GPT-2 1558M, bf16 with f32 master weights: memory of a rank</text>"
    for (i = 1; i <= 4; i++) {
        printf "<rect x=\"%d\" y=\"32\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" y=\"41\">%s</text>\n", left + (i - 1) * 112, colour[i], left + 14 + (i - 1) * 112, name[i]
    }
    y = 56
}
{
    if ($1 != ranks) { ranks = $1; y += 8; printf "<text x=\"12\" y=\"%d\">%s rank%s</text>\n", y + 34, ranks, (ranks > 1 ? "s" : "") }
    printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"13\" fill=\"%s\"/><text x=\"%.1f\" y=\"%d\">%.1f</text>\n", left, y, $3 / largest * wide, colour[$2 + 1], left + $3 / largest * wide + 5, y + 11, $3
    y += 16
}
END {
    y += 8
    printf "<path d=\"M%d 52 V%d H%d\" stroke=\"#5a6270\" fill=\"none\"/>\n", left, y, left + wide
    for (g = 0; g <= 25; g += 5) printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#5a6270\">%d</text>\n", left + g / largest * wide, y + 14, g
    printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#5a6270\">GiB: parameters, gradients, AdamW state, buffers</text>\n", left + wide / 2, y + 30
    print "</g>\n</svg>"
}'
