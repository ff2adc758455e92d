"""memory_of="process": the peak of a process, as the system counts it, stays within memory= at the minimum that
longshore.plan() says, and a mebibyte less is refused."""

import subprocess
import sys

import pytest

from models import HANGS_SECONDS

SCRIPT = """
import sys, types
import torch, transformers, longshore
from longshore.run import memory as measured

def now(name):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(name))

def small(name, **how):
    torch.manual_seed(0)
    config = getattr(transformers, name + "Config")(vocab_size=8000, **how)
    kind = {"GPT2": "GPT2LMHeadModel"}.get(name, name + "ForCausalLM")
    return getattr(transformers, kind)(config).train()

def gpt2():
    return small("GPT2", n_embd=384, n_layer=3, n_head=6, n_positions=256)

def llama():
    how = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 2}
    return small("Llama", num_hidden_layers=4, tie_word_embeddings=False, **how)

def sequential():
    torch.manual_seed(0)
    parts = [(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)) for _ in range(6)]
    return torch.nn.Sequential(*[torch.nn.Sequential(*each) for each in parts])

def lora():
    import peft
    how = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    return peft.get_peft_model(llama(), peft.LoraConfig(r=8, **how))

def language():
    ids = torch.arange(2048).view(8, 256) % 7919
    return {"input_ids": ids, "labels": ids}

def one(engine):
    engine.backward(engine(**language()).loss)

def together(engine):
    engine.train_batch([{"input_ids": b, "labels": b} for b in language()["input_ids"].split(2)])

def accumulated(engine):
    for n in range(3):
        engine.backward(engine(**language()).loss, last=n == 2)

def between(engine):
    one(engine)
    engine.step()
    engine.eval()
    with torch.no_grad():
        print("eval", float(engine(**language()).loss), file=sys.stderr)
    engine.train()
    one(engine)

def squares(engine):
    engine.backward(engine(torch.ones(2048, 512)).square().mean())

KINDS = {
    "gpt2": (gpt2, one), "together": (gpt2, together), "llama": (llama, one), "sequential": (sequential, squares),
    "lora": (lora, one), "bf16": (lambda: llama().bfloat16(), one), "accumulated": (gpt2, accumulated),
    "eval": (llama, between),
}
run, kind, *more = sys.argv[1:]
make, pass_of = KINDS[kind]
batch = torch.ones(2048, 512) if kind == "sequential" else language()
least = longshore.plan(make(), batch, memory_of="process")["minimum_bytes"]
how = {"memory_of": "process", "lr": 1e-3, "activation_room": "256MiB"}
def refused(name, memory):
    with longshore.wrap(make(), run=run + name, overwrite=True, memory=memory, **how) as engine:
        try:
            pass_of(engine)
        except longshore.BudgetError as failure:
            assert engine.step_number == 0
            return str(failure)

if more:
    print(refused(*more, least - (1 << 20)))
    sys.exit()
while kind in ("together", "accumulated") and (said := refused("0", least)):  # a plan is for a step of one pass
    least = int(float(said.split()[-2]) * 2**20)
for more in 0, 700:
    engine = longshore.wrap(make(), run=f"{run}-{more}", memory=least + (more << 20), **how)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak begins anew
    for _ in range(2):
        pass_of(engine)
        if kind != "together":
            engine.step()
    kinds = {fate.value for fate in engine._core.streams.fates.of.values()}
    print(now("VmHWM") - measured.imports_bytes(), engine._core.plan.process.limit, *sorted(kinds))
    engine.close()
"""


def child(tmp_path, kind, *more):
    script = tmp_path / "peak.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "run"), kind, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", "gpt2 llama sequential lora bf16 accumulated eval together".split())
def test_the_process_stays_within_its_memory(kind, tmp_path):
    if kind == "lora":
        pytest.importorskip("peft")
    for enough, line in enumerate(child(tmp_path, kind)):
        peak, limit, *fates = line.split()
        assert int(peak) <= int(limit), (kind, int(peak) >> 20, int(limit) >> 20, fates)
        assert "kept" in fates if enough else fates != ["kept"], fates


@pytest.mark.parametrize("kind", ["llama", "sequential"])
def test_a_mebibyte_less_is_refused(kind, tmp_path):
    (said,) = child(tmp_path, kind, "less")
    assert "is too little for this batch: minimum" in said
