#!/usr/bin/env bash
# Every benchmark in turn. PEERS: the directory with the peers' scripts; without it their row is left out.
# SHORT=1: what takes minutes and not hours.
cd "$(dirname "$0")" || exit 1
run() { printf '\n== %s\n' "$*"; "./$@"; }
run fio_vs_update.sh
run update_moments.sh
run opencl_update.sh
run step_overlap.sh
run compute_share.sh
run ram_vs_drive.sh
run activation_peak.sh
run throttled.sh
run unequal_drives.sh
run remote_update.sh
run link_bytes.sh
run gather.sh
run gather_lookups.sh
if [ -n "${SHORT:-}" ]; then run predict.sh quick; else run predict.sh whole policies; fi
run plan_vs_teraio.sh
if [ -n "${SHORT:-}" ]; then run minimum.sh 5m 124m; else run minimum.sh; fi
[ -n "${SHORT:-}" ] || run overrun_sweep.sh
[ -n "${SHORT:-}" ] || run moments_loss.sh
[ -n "${SHORT:-}" ] || run kill_far_side.sh
[ -n "${SHORT:-}" ] || run testbed.sh
[ -z "${PEERS:-}" ] || run train_vs_peers.sh "$PEERS" pytorch deepspeed small124 small774 state8_124 state8_774
