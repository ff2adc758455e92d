"""python -m longshore.deepspeed SCRIPT ...: runs a script for DeepSpeed, or for transformers with --deepspeed, as it is."""

import argparse
import logging
import os
import runpy
import sys


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m longshore.deepspeed",
        allow_abbrev=False,
        description="Runs a script in one process in which `import deepspeed` is Longshore: its model and optimizer live on drives, where "
        "the "
        'configuration says (nvme_path, or "longshore": {"run": DIRECTORY, "memory": SIZE}).',
    )
    for option in ("--num_gpus", "--num_nodes"):
        parser.add_argument(option, type=int, default=1, help="1: there is one process")
    for option in ("--include", "--exclude", "--hostfile", "--master_addr", "--master_port", "--launcher"):
        parser.add_argument(option, help="has no meaning for one process")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    said = parser.parse_args(argv)
    if said.num_gpus > 1 or said.num_nodes > 1:
        parser.error("--num_gpus, --num_nodes: one process owns a run; leave them out")
    if not said.module and not os.path.exists(said.script):
        parser.error(f"{said.script}: is not there")
    import torch

    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }.items():
        os.environ.setdefault(name, value)
    from . import standin
    from .config import logger

    standin.install()
    if not logging.getLogger().handlers and not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
    sys.argv = [said.script, *said.arguments]
    if said.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(said.script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(said.script)))
        runpy.run_path(said.script, run_name="__main__")


if __name__ == "__main__":
    main()
