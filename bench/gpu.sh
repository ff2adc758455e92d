#!/usr/bin/env bash
# All figures that need a GPU, in one call of at most 8 minutes: the package beside plain PyTorch (and DeepSpeed, if it
# can be imported) on the same device. A row that time does not reach is marked open.
#
#   scripts/wheel build/wheel                                                                           # once, anywhere
#   python3 -m pip install --no-deps --target build/gpu build/wheel/*.whl cffi pycparser safetensors tqdm
#   bench/gpu.sh [ROW...]
#
# PYTHON: with PyTorch and transformers (default python3). DRIVE: a directory on the drive (default runs/bench).
# SECONDS_ALL: the limit (default 480). OUT: where each row's JSON and what it said are kept (default a temporary
# directory). SIZE=tiny: small shapes, for a machine without a GPU (DEVICE=cpu), whose figures say nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
SECONDS_ALL=${SECONDS_ALL:-480}
export DRIVE=${DRIVE:-$here/../runs/bench} SIZE=${SIZE:-full} DEVICE=${DEVICE:-} PYTHONUNBUFFERED=1
mkdir -p "$DRIVE"
[ -d "$here/../build/gpu" ] && export PYTHONPATH="$here/../build/gpu${PYTHONPATH:+:$PYTHONPATH}"
out=${OUT:-$(mktemp -d)}

rows=("$@")
[ ${#rows[@]} -gt 0 ] || mapfile -t rows < <("$PYTHON" "$here/gpu.py" --list)
for row in "${rows[@]}"; do
    left=$((SECONDS_ALL - SECONDS))
    if [ "$left" -lt 15 ]; then
        echo "open: no time was left" >"$out/$row.why"
        continue
    fi
    echo "== $row (at $SECONDS s)"
    rc=0
    timeout --kill-after=5 "$left" "$PYTHON" "$here/gpu.py" "$row" >"$out/$row.json" 2>"$out/$row.log" || rc=$?
    tail -n 1 "$out/$row.json"
    case $rc in
        0) ;;
        124 | 137) echo "open: not done in the $left s that were left" >"$out/$row.why" ;;
        *) echo "failed: $(tail -n 1 "$out/$row.log")" >"$out/$row.why" ;;
    esac
done
"$PYTHON" "$here/gpu.py" --table "$out" "${rows[@]}"
