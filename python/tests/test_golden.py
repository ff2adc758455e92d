"""What golden trainings come to, as it was committed: digests, norms, plans, what is handed over to drives in which
order, bytes moved.

GRID=all: every case of the grid instead of those in which each two of its values meet. GOLDEN=write takes what this
build does for right: look at `git diff` then, and say in the commit what has changed and why.
"""

import os
import pathlib
import subprocess
import sys

import golden

TREE = pathlib.Path(__file__).parents[2]
COMMITTED = TREE / "tests" / "data" / "golden" / "package.txt"
TRACED = TREE / "build" / "python" / "traced" / "_native.abi3.so"


def test_golden_trainings(tmp_path):
    writes = os.environ.get("GOLDEN") == "write"
    cases = golden.grid(golden.EXACT) if writes or os.environ.get("GRID") == "all" else golden.pairs(golden.EXACT)
    command = [
        sys.executable,
        golden.__file__,
        "--native",
        str(TRACED),
        "--budgets",
        str(COMMITTED),
        str(tmp_path),
        *cases,
    ]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    if writes:
        COMMITTED.write_text("".join(f"{line}\n" for line in found))
    committed = {line.split()[0]: line for line in COMMITTED.read_text().splitlines()}
    assert found == [committed[case] for case in cases]
    ends = {}  # whatever the budget and the drives are, the bits are those of the model and the way
    for case, line in committed.items():
        kind, _, _, way = case.split("-")
        ends.setdefault((kind, way), set()).add(line.split()[2])
    assert all(len(digests) == 1 for digests in ends.values())
