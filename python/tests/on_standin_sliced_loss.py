"""Losses in slices of tokens, on the CPU and on the device of standin.py, in a process of their own.
python on_standin_sliced_loss.py DIRECTORY; writes JSON: {way: [digest on the CPU, on the device, of whole logits]}."""

import pathlib
import sys

from on_standin_sum_groups import tell

if __name__ == "__main__":
    tell(pathlib.Path(sys.argv[1]), 3, "fused_loss", True, False)
