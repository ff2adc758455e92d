"""What says each option of wrap(): one list, of which transformers' TrainingArguments and DeepSpeed's "longshore" section are made."""

from . import native
from .compression import share_of

# By option: (what says it in TrainingArguments, what says it in a configuration of DeepSpeed). None: nothing, wrap()'s default counts.
OPTIONS = {
    "run": ("run", "longshore.run"),
    "drives": ("drives", "longshore.drives"),
    "memory": ("memory", "longshore.memory"),
    "lr": ("learning_rate", "optimizer.params.lr"),
    "betas": ("adam_beta1 adam_beta2", "optimizer.params.betas"),
    "eps": ("adam_epsilon", "optimizer.params.eps"),
    "weight_decay": ("weight_decay", "optimizer.params.weight_decay"),
    "momentum": ("optim_args", "optimizer.params.momentum"),
    "clip": ("max_grad_norm", "gradient_clipping"),
    "optimizer": ("optim", "optimizer.type"),
    "groups": (None, None),  # create_optimizer() and initialize(model_parameters=) say it
    "storage": ("storage", "longshore.storage"),
    "moments": ("optim", "longshore.moments"),
    "on_nonfinite": (None, None),  # as in DeepSpeed, a step whose gradients are not finite is left out
    "layers": (None, None),
    "overwrite": ("overwrite_run", "longshore.overwrite"),
    "activations": ("activations", "longshore.activations"),
    "activation_room": ("activation_room", "longshore.activation_room"),
    "compress": ("compress", "longshore.compress"),
    "compress_after": ("compress_after", "longshore.compress_after"),
    "compile": ("torch_compile", None),  # the compile() of its engine does it
    "moments_from": ("moments_from", "longshore.moments_from"),
}
SECTION = [option for option, (_, said) in OPTIONS.items() if said == f"longshore.{option}"]
ARGUMENTS = [option for option in SECTION if OPTIONS[option][0] == option]  # Longshore's own, of TrainingArguments
_OF_THE_START = {"run", "drives", "memory", "overwrite", "moments_from"}  # which say where a run begins, and not how it is


def said_by(source, options):
    """{option: value} of those that an object says. What it leaves out, wrap() decides."""
    return {option: value for option in options if (value := getattr(source, option, None)) is not None}


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
        if made != wanted and not (option == "activation_room" and not made):  # without a place on the drives, it has no room
            other.append(f"{option} {made}, and not {value}")
    return other
