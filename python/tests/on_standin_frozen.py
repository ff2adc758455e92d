"""wrap(trains=False) on the CPU and on the device of standin.py, in a process of its own. python on_standin_frozen.py
DIRECTORY; writes JSON: {name: what came of it}."""

import copy
import gc
import json
import os
import pathlib
import re
import sys

import torch
from torch import nn
from torch.nn import functional as F

import models
import standin

standin.make()

import longshore  # noqa: E402
from longshore import native  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402
from on_standin import sizes  # noqa: E402
from test_budget import held  # noqa: E402


def eager(model):
    """With attention of single operations, which are the CPU's there."""
    model.config._attn_implementation = "eager"
    return model


def trained(where, path, slots, together):
    """A student with dropout learns from a teacher, and from a judge that its output goes through, in two lives. All
    three compute on one device, which only the student is told."""
    out = {"losses": []}
    for life in range(2):
        torch.manual_seed(7)
        student, teacher, judge = map(eager, (models.gpt2(dropout=0.1), models.llama(), models.gpt2()))
        with sizes(slots, slots):
            if life:
                engine = longshore.resume(path, student, memory="64MiB")
            else:
                engine = longshore.wrap(student, run=path, device=where, lr=1e-2, memory="64MiB")
            teacher, judge = (longshore.wrap(model, trains=False) for model in (teacher, judge))

        def loss_of(output, batch, teacher=teacher, judge=judge):
            with torch.no_grad():
                wanted = teacher(**batch).logits.log_softmax(-1)
            soft = output.logits.softmax(-1) @ judge.transformer.wte.weight.detach()
            kept = judge(inputs_embeds=soft, labels=batch["labels"]).loss
            return kept + F.kl_div(output.logits.log_softmax(-1), wanted, log_target=True)

        engine.train()
        for batch in models.tokens(2, seed=life):
            batch = {name: value.to(where) for name, value in batch.items()}
            if together:
                out["losses"].append(engine.train_batch([batch, batch], loss_of).loss)
            else:
                engine.backward(loss_of(engine(**batch), batch))
                out["losses"].append(engine.step().loss)
        out["digest"] = engine.digest()
        out["devices"] = sorted({p.device.type for e in (engine, teacher, judge) for p in e.parameters()})
        out["held"] = sum(map(held, (engine, teacher, judge)))
        out["gradients"] = sum(p.grad is not None for p in (*teacher.parameters(), *judge.parameters()))
        for e in (engine, teacher, judge)[:: 1 if life else -1]:
            e.close()
        del engine, teacher, judge, student, loss_of
    return out


def soft_prompt(where, path):
    """The way back through a frozen model alone, and its values as they were."""
    torch.manual_seed(3)
    model = eager(models.llama())
    values = copy.deepcopy(model.state_dict())
    prompt = torch.randn(2, 12, 48)
    with sizes(1, 1), longshore.wrap(model, run=path, device=where, memory="64MiB", trains=False) as frozen:
        there = prompt.to(where).requires_grad_(True)
        frozen(inputs_embeds=there, labels=models.tokens(1)[0]["labels"].to(where)).loss.backward()
        same = all(torch.equal(value.cpu() + 0, values[name]) for name, value in frozen.state_dict().items())
        return {"gradient": there.grad.cpu().tolist(), "same": same}


def beside_a_full_one(where, path):
    """An engine whose memory holds gradients, and no state: it gives of that memory between two steps."""

    def layers():
        return nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])

    def least(**how):
        try:
            longshore.wrap(layers(), run=f"{path}-none", device=where, memory="1KiB", **how)
        except longshore.BudgetError as said:
            return native.size(re.search(r"minimum ([0-9.]+ \w+)", str(said))[1])

    memory, out = least() + least(trains=False) + (8 << 20), {}  # and the drives' ring
    for n in range(2):
        torch.manual_seed(5)
        model, teacher = layers(), layers()
        with longshore.wrap(model, run=f"{path}-{n}", device=where, memory=memory, lr=1e-2) as engine:
            plan = core_of(engine).plan
            before, full, frozen = plan.gradient_bytes, plan.free_bytes < least(trains=False), teacher.to(where)
            for i, x in enumerate(torch.randn(4, 4, 512).to(where)):
                if i == 2 and n:
                    frozen = longshore.wrap(teacher, trains=False)
                    out.update(less=before - plan.gradient_bytes, full=full, memory=memory)
                    out["held"] = held(engine) + held(frozen)
                engine.backward((engine(x) - frozen(x).detach()).square().mean())
                engine.step()
            out[f"digest {n}"] = engine.digest()
    frozen.close()
    return out


def device_budgets(path):
    """Of an engine and a frozen model beside it, in two lives."""
    out = []
    for life in range(2):
        torch.manual_seed(9)
        model, reference = models.gpt2(), models.gpt2()
        how = {"memory": "64MiB", "gpu_memory": "64MiB"}
        made = longshore.resume(path, model) if life else longshore.wrap(model, run=path, device=standin.NAME, **how)
        with made as engine, longshore.wrap(reference, trains=False) as frozen:
            budgets = [core_of(each).device_memory.budget for each in (engine, frozen)]
            out.append([(budget.limit, budget.before) for budget in budgets])
    return out


def main(directory):
    torch.set_num_threads(1)
    told = {}
    for where in ("cpu", standin.NAME):
        told[f"prompt {where}"] = soft_prompt(where, os.path.join(directory, f"prompt-{where}"))
        gc.collect()
        told[f"live {where}"] = standin.live()
        told[f"full {where}"] = beside_a_full_one(where, os.path.join(directory, f"full-{where}"))
        for slots in (1, 9):
            for together in (False, True):
                name = f"{where} {slots} {together}"
                told[name] = trained(where, os.path.join(directory, name.replace(" ", "-")), slots, together)
    told["device budgets"] = device_budgets(os.path.join(directory, "budgets"))
    pathlib.Path(directory, "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
