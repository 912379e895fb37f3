# sampled.sh - samples the rows of a test script.
# shellcheck shell=sh

# run.sh samples by the remainder of SEED: a hash of it keeps the two choices apart.
sampled_turn=$((${SEED:-0} % 1000003 * 2654435761 / 65536 % 32768))
# sampled N: whether to run the next of many rows: every Nth call, from one that SEED chooses, or each call if SEED is not set.
sampled() {
    sampled_turn=$((sampled_turn + 1))
    [ -z "${SEED:-}" ] || [ $((sampled_turn % $1)) -eq 0 ]
}
