#!/usr/bin/env bash
# Longshore beside what users run today, in turn: train_vs_peers.sh PEERS [ROW...]
# PEERS: a directory with pytorch_memory.py and deepspeed_nvme.py; PYTHON: the interpreter that has torch and deepspeed.
# Rows: pytorch deepspeed small774 small124 (the default: all), state8_124 state8_774 (the small ones with 8-bit moments).
# DEEPSPEED: more flags for it ("--pipeline --buffers 12").
. "$(dirname "$0")/lib.sh"
peers=${1:?usage: train_vs_peers.sh PEERS [ROW...]}
shift
[ $# -gt 0 ] || set -- pytorch deepspeed small124 small774
PYTHON=${PYTHON:-python3}
ROUNDS=${ROUNDS:-2}
STEPS=${STEPS:-4}
machine
random_tokens "$work/tokens.bin"

# ours NAME BATCH LENGTH MEMORY [FLAGS...]: tokens a second
ours() {
    train "$work/run" --init "$1" --batch "$2" --seq-len "$3" --steps "$STEPS" --memory "$4" --drive "$work/state.volume" \
        --clip 100 "${@:5}"
    seconds "$work/run" 2 "$STEPS" | awk -v t=$(($2 * $3)) '{print t / $1}'
}
peer() { # SCRIPT ARGS...: tokens a second; nothing where it cannot run
    local script=$1
    shift
    { "$PYTHON" "$peers/$script" "$@" 2>"$work/peer.err" || echo "$script $*: does not run here" >&2; } |
        tee -a "$work/peers.json" | number tokens_per_second
}
best() { sort -g | tail -n 1; }
for row in "$@"; do
    : >"$work/ours"
    : >"$work/theirs"
    for ((round = 1; round <= ROUNDS; round++)); do
        case $row in
            pytorch)
                what="124M, 4 x 1,024 tokens, 1 GiB: speed / PyTorch in memory" limit=1.6
                ours gpt2-124m 4 1024 1GiB >>"$work/ours"
                for precision in fp32 bf16; do
                    peer pytorch_memory.py --precision $precision --batch 4 --seq-len 1024
                done | best >>"$work/theirs"
                ;;
            deepspeed)
                what="124M, 4 x 1,024 tokens, 1 GiB: speed / DeepSpeed from the drive" limit=2.0
                ours gpt2-124m 4 1024 1GiB >>"$work/ours"
                for precision in fp32 bf16; do
                    # shellcheck disable=SC2086
                    peer deepspeed_nvme.py --path "$work/ds" --precision $precision --batch 4 --seq-len 1024 ${DEEPSPEED:-}
                    rm -rf "$work/ds"
                done | best >>"$work/theirs"
                ;;
            small124 | small774 | state8_124 | state8_774)
                name=${row##*[a-z8_]}
                limit=1.9 memory=1GiB moments=fp32
                [ "$name" = 124 ] || { limit=1.6 memory=2GiB; }
                [ "${row%_*}" != state8 ] || { limit=2.7 moments=8bit; }
                what="${name}M, 4 x 64 tokens, $memory, $moments moments: speed / DeepSpeed's best"
                STEPS=8 ours gpt2-${name}m 4 64 $memory --moments $moments >>"$work/ours"
                for how in "" "--pipeline --buffers 12"; do
                    for precision in fp32 bf16; do
                        # shellcheck disable=SC2086
                        peer deepspeed_nvme.py --path "$work/ds" --shape ${name}m --precision $precision --batch 4 --seq-len 64 $how
                        rm -rf "$work/ds"
                    done
                done | best >>"$work/theirs"
                ;;
            *) echo "no row is called '$row'" >&2; exit 2 ;;
        esac
        [ -s "$work/theirs" ] || { tail -n 5 "$work/peer.err" >&2; echo "$row: the peer does not run here"; continue 2; }
        printf '%s, round %d: %.1f tokens/s, peer %.1f\n' "$row" $round "$(tail -n 1 "$work/ours")" "$(tail -n 1 "$work/theirs")"
    done
    verdict "$what" "$(calc "$(median <"$work/ours") / $(median <"$work/theirs")")" $limit
done
cat "$work/peers.json"
