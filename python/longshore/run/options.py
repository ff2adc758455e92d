"""Options of wrap() that are Longshore's own: one list, of which transformers' TrainingArguments and DeepSpeed's
"longshore" section are made."""

from .. import native
from ..step.compression import share_of

SECTION = ("run", "drives", "memory", "storage", "moments", "overwrite", "activations", "activation_room", "compress",
           "compress_after",
           "moments_from")  # in DeepSpeed's configuration, under "longshore"
# of TrainingArguments, where optim and overwrite_run say those
ARGUMENTS = [option for option in SECTION if option not in ("moments", "overwrite")]
# which say where a run begins, and not how it is
_OF_THE_START = {"run", "drives", "memory", "overwrite", "moments_from"}


def that_stay(engine, asked):
    """Of a run that goes on as it was made: what is asked for otherwise, in words; empty: nothing."""
    how, other = {"activations": "memory", "compress": 0.0, "compress_after": 0, **engine.state.program["engine"]}, []
    for option, value in asked.items():
        if option in _OF_THE_START:
            continue
        if option == "activation_room":
            made, wanted = engine.state.scratch_bytes, native.size(value, option)
        else:
            made, wanted = how[option], share_of(value) if option == "compress" else value
        # without a place on the drives, it has no room
        if made != wanted and not (option == "activation_room" and not made):
            other.append(f"{option} {made}, and not {value}")
    return other
