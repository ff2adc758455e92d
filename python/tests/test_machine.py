"""Descriptions of machines in the package, and what PyTorch's measurement adds to the program's."""

import json
import stat

import pytest
import torch

import longshore
from longshore.native import ffi
from longshore.run import machine

TORCHS = {"product": {"fp32": 5e9}}
PLAIN = {"host": {"memory": 1 << 34}, "drives": [{"read": 1e9}], "compute": {"products": {"fp32": 1e9}}}


@pytest.fixture
def quick(monkeypatch):
    for name, value in {
        "ROWS": (2, 4),
        "WIDTH": 8,
        "HEADS": 1,
        "HEAD_WIDTH": 8,
        "LENGTHS": (2, 4),
        "MOVED_BYTES": 64,
        "SECONDS": 0.0,
    }.items():
        monkeypatch.setattr(machine, name, value)


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """No machine is kept."""
    monkeypatch.delenv("LONGSHORE_MACHINE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_machine_that_nobody_measured_is_assumed_and_says_so(empty):
    found = machine.of(None)
    assert not found.named and found.handle() == ffi.NULL
    assert found.said.startswith("assumed rates: ") and "python -m longshore machine" in found.said


def test_machines_of_files_and_descriptions_are_named(tmp_path):
    path = tmp_path / "rack.json"
    path.write_text(json.dumps(PLAIN))
    for asked in (path, str(path), PLAIN):
        found = machine.of(asked)
        assert found.named and len(found.drives) == 1
        assert found.size("host", "memory") == 1 << 34 and found.size("gpu", "memory") is None
    with pytest.raises(longshore.LongshoreError, match='did you mean "drives"'):
        machine.of({"drivs": []})
    with pytest.raises(longshore.LongshoreError, match="nothing-of-this-name"):
        machine.of("nothing-of-this-name")


def test_a_plan_counts_with_pytorchs_rates_where_it_computes():
    def rate(found, device=None):
        return machine.described(found.handle(device))["compute"]["products"]["product"]["fp32"]

    found = machine.of({**PLAIN, "compute": {**PLAIN["compute"], "torch": TORCHS}})
    assert rate(found) == 5e9
    there = machine.of({**found.described, "gpu": {"memory": 1 << 30}})
    assert rate(there, torch.device("cuda")) == 5e9
    assert rate(there) == 1e9  # PyTorch's are the accelerator's
    assert rate(machine.of(PLAIN)) == 1e9


def test_a_changed_machine_leaves_the_other_as_it_was():
    found = machine.of(PLAIN)
    assert len(found.changed(lambda d: d["drives"].append({})).drives) == 2
    assert len(found.drives) == 1


def test_pytorchs_rates_have_the_form_of_products(quick):
    rates = machine.torch_rates(torch.device("cpu"))
    kinds = "product product_input product_weight attention attention_backward rows functions calls"
    assert {*rates} == {*kinds.split()}
    assert [rows for rows, _ in rates["product"]["fp32"]] == [2, 4]
    machine.parsed({"compute": {"torch": rates}})


def test_main_adds_to_what_the_program_measured_and_keeps_it(quick, empty, tmp_path, capsys):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({**PLAIN, 'measured': 1 << 40})}'\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    assert machine.main(str(program), ["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["drives"] == PLAIN["drives"] and told["compute"]["torch"]["rows"]["fp32"][0][1] > 0
    assert "torch" in json.loads((tmp_path / "longshore" / "machine.json").read_text())["compute"]
    out = tmp_path / "out.json"
    assert machine.main(str(program), ["--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert machine.main(None, []) == 1 and "not installed" in capsys.readouterr().err
    program.write_text("#!/bin/sh\nexit 3\n")
    assert machine.main(str(program), []) == 3


def test_main_that_measures_nothing_keeps_nothing(quick, empty, tmp_path, capsys):
    program = tmp_path / "program"
    for told in (json.dumps(PLAIN), json.dumps({**PLAIN, "measured": 1_600_000_000}), "a list"):
        program.write_text(f"#!/bin/sh\necho '{told}'\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        for arguments in (["another", "--json"], ["--list"]):
            assert machine.main(str(program), arguments) == 0
        assert capsys.readouterr().out == told + "\n"  # of --json; the other is the program's own
    assert not (tmp_path / "longshore" / "machine.json").exists()
