"""python -m longshore.deepspeed SCRIPT ...: runs an unchanged script that uses DeepSpeed, or transformers with it."""

import argparse
import importlib.util
import logging
import os
import runpy
import sys

# options of the launcher `deepspeed` that mean nothing for one process
_NAMES = """master_addr master_port node_rank launcher launcher_args ssh_port venv_script log_level bind_core_list
    enable_each_rank_log""".split()
_WITH_VALUE: list[tuple] = [
    ("-i", "--include"),
    ("-e", "--exclude"),
    ("-H", "--hostfile"),
    *((f"--{name}",) for name in _NAMES),
]
_NAMES = "no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank".split()
_ALONE: list[tuple] = [("-q", "--quiet"), *((f"--{name}",) for name in _NAMES)]


class _Refused(argparse.Action):
    """An option that is refused with what to do instead."""

    def __init__(self, *args, instead, **how):
        super().__init__(*args, **how)
        self.instead = instead

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"{option_string}: is not supported: {self.instead}")


def _refuse_module(parser, name):
    """Ends the program if there is no module of this name."""
    try:
        there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as e:
        if not f"{name}.".startswith(f"{e.name}."):
            raise  # a package above it fails to import something else
        there = False
    if not there:
        parser.error(f"-m {name}: there is no such module here or in this Python's packages")


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m longshore.deepspeed",
        allow_abbrev=False,
        description="Runs a script in which `import deepspeed` is Longshore. Its model and optimizer "
        "lie on the drives that "
        'the configuration names (nvme_path, or "longshore": {"run": DIRECTORY, "memory": SIZE}). Options of the '
        "launcher `deepspeed` may "
        "stay in front of SCRIPT.",
        epilog="Example: python -m longshore.deepspeed train.py --deepspeed ds.json",
    )
    for options in (("--num_gpus", "--num_accelerators"), ("--num_nodes",)):
        parser.add_argument(*options, type=int, default=1, metavar="N", help="1: torchrun starts several ranks")
    for options in _WITH_VALUE:
        parser.add_argument(*options, metavar="X", help=argparse.SUPPRESS)
    for options in _ALONE:
        parser.add_argument(*options, action="store_true", help=argparse.SUPPRESS)
    refused: dict = {"action": _Refused, "help": argparse.SUPPRESS}
    parser.add_argument("--no_python", nargs=0, instead="run it by itself", **refused)
    parser.add_argument("--autotuning", nargs="?", instead="memory is planned from longshore.memory", **refused)
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    help_of_arguments = "its own arguments, --deepspeed and --deepspeed_config too"
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=help_of_arguments)
    said, others = parser.parse_known_args(argv)
    if others:
        parser.error(f"{others[0]}: is not an option of this launcher; give the script's options after SCRIPT")
    if said.num_gpus > 1 or said.num_nodes > 1:
        parser.error(
            "--num_gpus, --num_nodes: torchrun starts ranks: torchrun --nproc-per-node N -m longshore.deepspeed SCRIPT"
        )
    if not said.module and not os.path.exists(said.script):
        parser.error(f"{said.script}: does not exist")
    if not said.module and os.path.isdir(said.script) and not os.path.exists(os.path.join(said.script, "__main__.py")):
        parser.error(f"{said.script}: is a directory without a __main__.py; name the script")
    _be_one_process()
    from ..integrations import deepspeed_import
    from ..integrations.deepspeed_config import logger
    from ..model import unreadable_weights

    deepspeed_import.install()
    if not logging.getLogger().handlers and not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if said.module:
        sys.path.insert(0, os.getcwd())
        _refuse_module(parser, said.script)
    sys.argv = [said.script, *said.arguments]
    with unreadable_weights.named():
        if said.module:
            runpy.run_module(said.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(said.script)))
            runpy.run_path(said.script, run_name="__main__")


def _be_one_process():
    """Sets the environment variables with which launchers tell a process its rank."""
    import torch

    said = f"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 OMP_NUM_THREADS={torch.get_num_threads()}"
    for name, value in (pair.split("=") for pair in f"{said} MASTER_ADDR=127.0.0.1 MASTER_PORT=29500".split()):
        os.environ.setdefault(name, value)


if __name__ == "__main__":
    main()
