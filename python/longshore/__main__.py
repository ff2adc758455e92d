"""python -m longshore: runs the program `longshore`; without arguments, lists what the package offers."""

import os
import shutil
import sys
import sysconfig

import longshore
from longshore.run import doctor, machine, planning

_HELP = """longshore {version}: {program}

python -m longshore COMMAND ...                     as the program: `python -m longshore inspect RUN`, `... --help`
python -m longshore doctor                          what this machine has for training: accelerator, memory, drives
python -m longshore machine --drive PATH            measures this machine, with PyTorch and the accelerator, for plans
python -m longshore plan MODEL ...                  what training a model will take: memory, disk, time
python -m longshore.deepspeed SCRIPT ...            runs a script for DeepSpeed, or for a Trainer with --deepspeed
python -m longshore.deepspeed.zero_to_fp32 DIR OUT  makes a checkpoint's weights files
import longshore                                    init, wrap, resume, resident, verify
from longshore.transformers import Trainer          transformers' Trainer by one changed import
"""


def _program():
    """Path of the program `longshore`: installed with the package, or else on PATH; None if there is none."""
    beside = os.path.join(sysconfig.get_path("scripts"), "longshore")
    return beside if os.access(beside, os.X_OK) else shutil.which("longshore")


def main():
    program, arguments = _program(), sys.argv[1:]
    if arguments[:1] == ["doctor"] and not {"--help", "-h"} & {*arguments}:
        sys.exit(doctor.main(program, arguments[1:]))
    if arguments[:1] == ["machine"]:
        sys.exit(machine.main(program, arguments[1:]))
    if arguments[:1] == ["plan"] and "--init" not in arguments and "--model" not in arguments:
        sys.exit(planning.main(arguments[1:]))
    if program is not None and arguments:
        os.execv(program, ["longshore", *arguments])
    if arguments == ["--version"]:
        print(f"longshore {longshore.__version__}")
    elif arguments and arguments[0] not in ("--help", "-h"):
        sys.exit(
            "python -m longshore: the program `longshore` is not installed, or not on PATH: run `make install` in "
            "the sources"
        )
    else:
        where = f"the program is {program}" if program else "the program `longshore` is not installed, or not on PATH"
        print(_HELP.format(version=longshore.__version__, program=where), end="")


if __name__ == "__main__":
    main()
