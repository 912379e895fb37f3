#!/bin/sh
# planned.sh PLANNER PAGE - prints PAGE with the tables between `<!-- planned NAME -->` and `<!-- end -->` computed anew.
# PLANNER is the program zero_plan.
# shellcheck disable=SC2016 # backquotes of Markdown
set -u
plan=$1
csv=$(mktemp)
trap 'rm -f "$csv"' EXIT

# Prints the rows of a plan: tiers, stage, and GiB of a rank's state, buffers and activations.
rows() { # FLAGS...
    "$plan" "$@" -csv "$csv" >/dev/null || exit 1
    awk -F, 'NR > 1 { print $2 "," $1 "," ($5 + $6 + $7 + $8) / 1048576 "," $10 / 1073741824 "," $18 }' "$csv"
}

# Memory of a rank at stages 1 and 2, in MiB, without activations. The smaller one is bold.
stage2() {
    echo '| model, f32 | 2 ranks | 4 ranks | 8 ranks | 64 ranks |'
    echo '|---|--:|--:|--:|--:|'
    for model in d6 d12 d24 gpt2:d48; do
        line="| \`-e $model\` |"
        for ranks in 2 4 8 64; do
            line="$line $(rows -e $model -pn $ranks -t 64 -b 1 --memory 80G | awk -F, '
                function show(mib, smaller) { return smaller ? sprintf("**%.0f**", mib) : sprintf("%.0f", mib) }
                $1 == "device" { at[$2] = $3 }
                END { print show(at[1], at[1] < at[2]) ", " show(at[2], at[2] < at[1]) }') |"
        done
        echo "$line"
    done
}

# Does GPT-2 355M fit into 8 GiB? A row for each set of flags: GiB of a rank.
fit355() {
    echo '| flags, with `-e d24 -t 1024` | GiB of a rank | fits into 8 GiB |'
    echo '|---|--:|---|'
    while read -r tiers stage flags; do
        # shellcheck disable=SC2086 # lists of flags
        rows -e d24 -t 1024 --memory 8G $flags | awk -F, -v tiers="$tiers" -v stage="$stage" -v flags="$flags" '
            $1 == tiers && $2 == stage {
                more = tiers == "host" ? " -zos host" : tiers == "state" ? " -zos file" : ""
                printf "| `%s -z %s%s` | %.1f | %s |\n", flags, stage, more, $4, $5 ? "yes" : "no"
            }'
    done <<'ROWS'
device 0 -pn 1 -b 1
device 0 -pn 1 -b 4
device 0 -pn 1 -b 4 -r 3
device 0 -pn 1 -b 1 -dt bf16
device 0 -pn 1 -b 4 -dt bf16
host 0 -pn 1 -b 4 -dt bf16
device 1 -pn 2 -b 4 -dt bf16
device 3 -pn 8 -b 4 -dt bf16
ROWS
}

while IFS= read -r line; do
    case $line in
    '<!-- planned '*)
        name=${line#<!-- planned }
        printf '%s\n' "$line"
        ${name% -->} || exit 1
        while IFS= read -r line && [ "$line" != '<!-- end -->' ]; do :; done
        ;;
    esac
    printf '%s\n' "$line"
done <"$2"
