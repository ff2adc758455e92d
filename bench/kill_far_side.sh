#!/usr/bin/env bash
# Kills the far side of a mixed fleet KILLS (100) times at random instants of one training: it has to end with the digest
# of a run that was never interrupted. STEPS (600): enough that the kills fit in.
. "$(dirname "$0")/../tests/e2e/lib.sh"
gpt2_config "$place/config.json" 2 96 4 64 600
some_text "$place/text" 300
common=(--init "$place/config.json" --seed 3 --data "$place/text" --steps "${STEPS:-600}" --batch 8 --seq-len 64 --lr 2e-3
        --memory 512MiB --log-every 100)
must train "${common[@]}" --drive ram: --out "$place/whole"
wanted=$(digest)
mkdir "$place/served" "$place/local"
printf '#!/bin/sh\nshift\nexec "%s" drive serve --stdio\n' "$LONGSHORE" >"$place/rsh"
chmod +x "$place/rsh"
kill_far_side "$place/killed" "${KILLS:-100}" 150 train "${common[@]}" --rsh "$place/rsh" \
    --drive "ssh://far$place/served/k.volume" "$place/local/k.volume"
same "exit code" $rc 0
same "kills" $kills "${KILLS:-100}"
same "digest after $kills kills" "$(digest)" "$wanted"
done_testing
