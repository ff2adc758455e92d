"""Charges of steps on the device of standin.py, in a process of its own. python on_standin_charges.py DIRECTORY; writes
JSON: the lines of metrics, and the threads that backward ran in."""

import json
import pathlib
import sys
import threading

import torch

import standin

standin.make()

import longshore  # noqa: E402
import models  # noqa: E402
from test_charges import lines, own_backward, scripts_backward, slow  # noqa: E402


def main(directory):
    torch.manual_seed(3)
    threads, model = set(), slow(0.05, 0.06)
    with longshore.wrap(model, run=directory / "run", memory="64MiB", device=standin.NAME) as engine:
        for loop in (own_backward, scripts_backward) * 2:
            out = engine(torch.ones(2, 8, device=engine.device))
            out.register_hook(lambda gradient: threads.add(threading.get_ident()))
            loop(engine, out.sum())
    with longshore.wrap(models.gpt2(), run=directory / "gpt2", memory="64MiB", device=standin.NAME) as engine:
        for batch in models.tokens(3):
            own_backward(engine, engine(**{name: t.to(engine.device) for name, t in batch.items()}).loss)
    told = {name: lines(directory / name) for name in ("run", "gpt2")}
    told["elsewhere"] = threading.get_ident() not in threads
    (directory / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
