"""Where a model computes: what device= chooses, what moves along, what a run remembers, and what is refused, on the
device of standin.py."""

import re

import standin

THERE = standin.NAME
OR_CPU = f'; this machine has {THERE}:0, and device="cpu" computes on the CPU'


def test_parameters_and_buffers_that_move(told):
    """Objects, ties, hooks, gradients and the optimizer are the script's; the bits are the CPU's."""
    here, there = told["moves"]["cpu"], told["moves"][THERE]
    for where, of in (("cpu", here), (THERE, there), ("cpu", told["moves back"])):
        for kept in ("same parameters", "same groups", "tied", "same buffers"):
            assert of[kept], (where, kept)
        for places in ("places", "hooks", "gradients before", "closed"):
            assert of[places] == [where], (where, places)
        assert of["hooks ran"] == 4 and of["engine"].partition(":")[0] == where
        assert of["digest"] == here["digest"] and of["losses"] == here["losses"]
    assert there["shared"] and there["dtypes"] == here["dtypes"] and there["values"] == here["values"]


def test_what_is_chosen(told):
    chosen = told["chosen"]
    for name in ("default", "lies there", "by name", "by number", "init"):
        assert chosen[name] == [f"{THERE}:0", [f"{THERE}:0"], THERE], name
    for name in ("cpu", "back to the cpu"):
        assert chosen[name] == ["cpu", ["cpu"], "cpu"], name
        assert chosen[f"beside {name}"] == "cpu", "a frozen model computes where the one beside it does"


def test_a_run_goes_on_on_another_device(told):
    resumed = told["resumed"]
    first, *others = resumed["by kinds"]
    assert [of[:2] for of in others] == [first[:2]] * 4
    assert [of[2] for of in resumed["by kinds"]] == ["cpu", THERE, "cpu", THERE, "cpu"]
    assert resumed["wide"][0] == resumed["wide"][1]


def test_what_a_run_records(told):
    resumed = told["resumed"]
    assert resumed["record"] == THERE and resumed["of before"] == ["cpu", THERE]
    assert "was made with device='xpu': " in resumed["lacks"] and resumed["lacks"].endswith(OR_CPU)
    assert resumed["lacked, on the cpu"] == [1, "cpu"]
    assert resumed["named"].startswith("LongshoreError: resume: device='cuda': ")
    assert (
        resumed["module"] == f"ValueError: resume: device='nowhere': must be a torch.device or the name of one{OR_CPU}"
    )


def test_buffers_that_change_their_size_and_dtype(told):
    assert told["changing"] == [[f"{THERE}:0", "torch.float32", [1.0] * 3], [f"{THERE}:0", "torch.float64", [1.0] * 2]]


def test_what_scripts_load_write_and_read(told):
    here, there = told["by a script"]
    assert here == there and there[-1]


def test_an_absent_parameter_says_its_device(told):
    absent = told["absent"]
    assert absent["device"] == [f"{THERE}:0", 0, False, False, True]
    assert absent["all"] == absent["grads"] == [f"{THERE}:0"]
    assert absent["model"] == absent["closed"] == absent["a gradient"] == [f"{THERE}:0"] * 2
    assert absent["like"] == absent["assigned"] == f"{THERE}:0"
    assert absent["generated"] == absent["expected"]
    assert "before longshore.wrap(), whose device= moves them" in absent["away"]
    assert all(absent["moved"]) and all(absent["by its name"])


def test_tensors_elsewhere(told):
    said, begins = told["elsewhere"], f"LongshoreError: the model computes on {THERE}:0, and "
    ends = '; or compute on the CPU, with device="cpu"'
    moves = "batch.to(engine.device) moves it"
    assert said["batch"] == f"{begins}the batch lies elsewhere (argument 1 on cpu): {moves}{ends}"
    assert said["together"] == said["batch"]
    assert said["batch by name"] == f"{begins}the batch lies elsewhere (ids on cpu): {moves}{ends}"
    assert said["buffer"] == f"{begins}buffer waves of the model lies on cpu: move it there{ends}"
    assert said["tensor"].startswith(f"{begins}mask of the model lies on cpu: make it a buffer")
    assert said["code"].startswith(f"{begins}its code makes a tensor elsewhere (Expected all tensors to be on the same")
    assert said["goes on"] == [True, 1]
    assert said["there"] == (
        f"LongshoreError: the model computes on cpu, and the batch lies elsewhere (argument 1 on {THERE}:0): {moves}"
    )


def test_devices_that_are_not_there(told):
    said = told["named"]
    must = "must be a torch.device or the name of one"
    assert said["unknown"] == f"ValueError: wrap: device='gpu': {must}{OR_CPU}"
    assert said["kind"] == f"ValueError: wrap: device=0: {must}{OR_CPU}"
    assert said["number"] == f"LongshoreError: wrap: device='{THERE}:1': there is no {THERE}:1{OR_CPU}"
    assert said["meta"] == f"LongshoreError: wrap: device='meta': it is no accelerator of this PyTorch{OR_CPU}"
    for name, asked in (("other", "cuda"), ("old", "xpu:1")):  # with PyTorch's own reason
        assert said[name].startswith(f"LongshoreError: wrap: device='{asked}': ") and said[name].endswith(OR_CPU)
    has_none = 'this machine has no accelerator that PyTorch can use, and device="cpu" computes on the CPU'
    too_old = "The NVIDIA driver on your system is too old (found version 11040)"
    assert said["driver"] == f"LongshoreError: wrap: device='cuda': {too_old}; {has_none}"
    assert said["none"].endswith(has_none) and said["without"] == "cpu"
    half = rf"LongshoreError: the model lies on cpu \(\S+\), {THERE}:0 \(layers\.\S+\), and computes on one device: .*"
    assert all(re.fullmatch(half, said[f"half {device}"]) for device in (None, THERE, "cpu"))
    assert not said["made"]


def test_a_model_that_has_no_room_stays_as_it_was(told):
    assert "is too little for this model: minimum" in told["named"]["memory"] and told["named"]["stays"] == ["cpu"]
    assert "is too little for this model: minimum 64." in told["named"]["buffers"]


def test_losses_on_the_host_and_those_that_wait(told):
    """A pass that is not the last waits for nothing; PyTorch itself waits to copy the first gradient of a loss of the
    host. What a script does to its loss afterwards does not count."""
    here, there = told["losses"]["cpu"], told["losses"][THERE]
    assert here["losses"] == there["losses"] and here["digest"] == there["digest"]
    assert there["waits"] == [0, 0, 0, 1, 1, 1]
    assert told["checkpointed"] > 0
