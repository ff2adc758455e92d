"""An engine is an nn.Module whose child is the model: what holds modules, or asks for one, takes it."""

import copy
import gc
import inspect
import tempfile
import weakref

import pytest
import torch
from torch import distributed, nn

import longshore
from models import Cnn, gpt2, tokens
from test_loop import engine_for


class Tower(nn.Module):
    """An encoder with a head of its own."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.BatchNorm1d(32), nn.Linear(32, 4))


@pytest.fixture(params=["plenty", "least"])
def make(request, tmp_path, monkeypatch):
    """A function that makes an engine with plenty of memory, or with the least."""
    engines = []

    def engine(model, **how):
        little = {"slots": 1, "gradient_bytes": 0, "monkeypatch": monkeypatch} if request.param == "least" else {}
        engines.append(engine_for(model, tmp_path, name=f"run{len(engines)}", clip=0.0, **little, **how))
        return engines[-1]

    yield engine
    for engine in engines:
        engine.close()


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
HOLDERS = {
    "tower": Tower,
    "sequential": lambda m: nn.Sequential(m, nn.Linear(4, 2)),
    "list": lambda m: nn.ModuleList([m]),
    "dict": lambda m: nn.ModuleDict({"a": m}),
    "parallel": lambda m: Tower(nn.DataParallel(m)),
    "two deep": lambda m: nn.Sequential(Tower(m)),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_module_that_holds_an_engine_has_the_names_of_one_that_holds_the_model(kind, make):
    plain, held = HOLDERS[kind](net()), HOLDERS[kind](make(net()))
    assert held.state_dict().keys() == plain.state_dict().keys()
    for names in ("named_parameters", "named_buffers"):
        assert [n for n, _ in getattr(held, names)()] == [n for n, _ in getattr(plain, names)()]
    assert {n for n, _ in held.named_modules()} == {n for n, _ in plain.named_modules()}
    for name, _ in plain.named_parameters():
        assert held.get_parameter(name).shape == plain.get_parameter(name).shape
    engine = next(m for m in held.modules() if isinstance(m, longshore.Engine))
    assert engine.module in held.modules() and list(engine.children()) == [engine.module]
    held.eval()
    assert not any(m.training for m in held.modules()) and not engine.training
    held.train()
    assert all(m.training for m in held.modules()) and engine.training
    assert held.to("cpu") is held and held.float() is held
    held.requires_grad_(False)
    assert not any(p.requires_grad for p in engine.module.parameters())
    seen = []
    held.apply(seen.append)
    assert engine not in seen and seen.count(engine.module) == 1  # as without the engine


def test_what_is_saved_of_an_outer_module_loads_with_and_without_an_engine(make):
    plain, held = Tower(net()), Tower(make(net()))
    for p in [*plain.parameters(), *plain.buffers()]:
        p.data.add_(1)
    saved = copy.deepcopy(plain.state_dict())
    before = held.encoder.step_number
    held.load_state_dict(saved)
    assert held.encoder.step_number == before + 1
    now = held.state_dict()
    assert now.keys() == saved.keys() and all(torch.equal(now[n], saved[n]) for n in saved)
    Tower(net()).load_state_dict(now)
    held.load_state_dict(copy.deepcopy(now))
    assert torch.equal(held.eval()(X), plain.eval()(X))

    less = {n: t for n, t in saved.items() if n != "encoder.0.weight"} | {"encoder.new": torch.ones(1)}
    assert held.load_state_dict(less, strict=False) == plain.load_state_dict(less, strict=False)
    less["encoder.3.bias"] = torch.ones(9)
    said = []
    for module in (plain, held):
        with pytest.raises(RuntimeError) as refused:
            module.load_state_dict(less)
        said.append(str(refused.value))
    assert said[0] == said[1] and "size mismatch for encoder.3.bias" in said[0]


def test_a_layer_knows_the_version_that_it_was_saved_with(make):
    seen = []

    class Versioned(nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
            seen.append(local_metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    held = nn.Sequential(make(nn.Sequential(Versioned(8, 4), nn.ReLU())))
    held.load_state_dict(held.state_dict())
    assert seen == [3]


@pytest.mark.parametrize("how", ["backward", "train_batch"])
def test_hooks_of_the_engine_itself_run(how, make):
    engine, seen = make(net()), []
    engine.register_forward_pre_hook(lambda module, args: seen.append(("before", module)))
    engine.register_forward_hook(lambda module, args, out: seen.append(("after", module)))
    engine.register_full_backward_hook(lambda module, *grads: seen.append(("backward", module)))
    if how == "backward":
        engine(X.clone().requires_grad_()).sum().backward()
        engine.step()
    else:
        engine.train_batch([(X.clone().requires_grad_(),), (X.clone().requires_grad_(),)], lambda out, _: out.sum())
    assert all(module is engine for _, module in seen)
    times = 1 if how == "backward" else 2
    assert [[what for what, _ in seen].count(what) for what in ("before", "after", "backward")] == [times] * 3


def test_an_optimizer_of_an_outer_modules_parameters_is_refused(make):
    held = Tower(make(net()))
    optimizer = torch.optim.SGD(held.parameters(), lr=0.1)
    held(X).sum().backward()
    head = held.head.weight.detach().clone()
    with pytest.raises(
        longshore.LongshoreError,
        match=r"0.weight: is updated by engine.step\(\) and engine.optimizer; "
        r".* make SGD of the parameters that are not in engine",
    ):
        optimizer.step()
    assert torch.equal(head, held.head.weight)
    torch.optim.SGD(held.head.parameters(), lr=0.1).step()  # what the message says
    assert held.encoder.step().step == 1 and not torch.equal(head, held.head.weight)


@pytest.mark.parametrize("give", [lambda ps: {"optimizer": torch.optim.AdamW(ps)}, lambda ps: {"groups": ps}])
def test_parameters_of_a_loss_get_an_optimizer_of_their_own(give, tmp_path):
    model, loss = net(), nn.Linear(4, 1)
    with pytest.raises(ValueError, match="shape .1, 4. that is not the model's; .* optimizer of their own"):
        longshore.wrap(model, run=tmp_path / "run", **give([*model.parameters(), *loss.parameters()]))


def test_attributes_that_are_set_through_the_engine(make):
    engine = make(nn.Sequential(nn.Linear(8, 4)))
    engine.note = "mine"
    engine.register_buffer("seen", torch.zeros(2))
    engine.seen = torch.ones(2)
    engine.extra = nn.Linear(2, 2)
    assert not hasattr(engine.module, "note")
    assert engine.module.seen is engine.seen and engine.module.extra is engine.extra
    assert list(engine.children()) == [engine.module]
    with pytest.raises(longshore.LongshoreError, match="engine.module: is the model that was wrapped"):
        engine.module = net()


def test_functional_call_of_an_engine(make):
    for model, call in ((net(), lambda m: nn.Sequential(m)), (nn.Linear(8, 4), lambda m: m)):
        plain, engine = copy.deepcopy(model).eval(), call(make(model)).eval()
        values = {n: 2 * p.detach() for n, p in call(plain).named_parameters()}
        assert torch.equal(
            torch.func.functional_call(engine, values, X), torch.func.functional_call(call(plain), values, X)
        )
        assert torch.equal(engine(X), plain(X))


def test_forward_shows_the_models_signature(make):
    engine = make(gpt2())
    assert inspect.signature(engine.forward) == inspect.signature(engine.module.forward)
    assert torch.equal(engine.forward(**tokens(1)[0]).logits, engine(**tokens(1)[0]).logits)


def test_a_dropped_engine_closes_its_run(tmp_path):
    held = Tower(engine_for(Cnn(), tmp_path))
    engine = weakref.ref(held.encoder)
    del held
    gc.collect()
    assert engine() is None
    longshore.verify(tmp_path / "run")


def test_a_compiled_engine(make):
    engine = make(net().eval())
    compiled = torch.compile(engine, backend="eager")
    assert torch.allclose(compiled(X), engine(X))
    compiled(X).sum().backward()
    assert engine.step().step == 1
    assert [n.replace("_orig_mod.", "") for n in compiled.state_dict()] == [*engine.state_dict()]


# ---- other libraries

DATA = [torch.randn(6, 8, generator=torch.Generator().manual_seed(n)) for n in range(4)]


def loss_of(model, x):
    return (model(x) - x[:, :4]).square().mean()


def _pair(make, kind=torch.optim.AdamW):
    """(module, optimizer), in PyTorch and with an engine."""
    plain, other = net().eval(), net().eval()
    engine = make(other, optimizer=kind(other.parameters(), lr=1e-2), lr=None, weight_decay=None)
    return [(plain, kind(plain.parameters(), lr=1e-2)), (engine, engine.optimizer)]


def _same(found):
    assert len(found[0]) == len(found[1]) > 8
    assert max(abs(a - b) for a, b in zip(*found)) < 1e-4


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_takes_an_engine(precision, make, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    found = []
    for model, optimizer in _pair(make):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerator, losses = (
            accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2),
            [],
        )
        prepared, optimizer, loader = accelerator.prepare(
            model, optimizer, torch.utils.data.DataLoader(DATA, batch_size=None)
        )

        def epoch():
            for x in loader:
                with accelerator.accumulate(prepared):
                    loss = loss_of(prepared, x)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())

        epoch()
        where = tempfile.mkdtemp(dir=tmp_path)
        accelerator.save_state(where)
        epoch()
        accelerator.load_state(where)
        epoch()
        assert losses[8:] == losses[4:8]  # the state came back
        accelerator.save_model(prepared, where)
        assert (
            accelerator.get_state_dict(prepared).keys() == net().state_dict().keys()
            and accelerator.unwrap_model(prepared) is model
        )
        accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
        losses.append(loss_of(prepared, DATA[0]).item())
        found.append(losses)
    accelerate.state.AcceleratorState._reset_state(True)
    _same(found)


def test_transformers_own_trainer_takes_an_engine_with_its_optimizer(tmp_path, seed):
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments(
        str(tmp_path / "out"),
        use_cpu=True,
        report_to=[],
        max_steps=4,
        per_device_train_batch_size=2,
        logging_steps=1,
        disable_tqdm=True,
    )
    rows = [{key: value[0] for key, value in batch.items()} for batch in tokens(8, batch=1)]
    engine, found = gpt2(), []
    plain = copy.deepcopy(engine)
    engine = engine_for(
        engine,
        tmp_path,
        optimizer=torch.optim.AdamW(engine.parameters(), lr=1e-3),
        lr=None,
        weight_decay=None,
        clip=0.0,
    )
    for model, optimizer in (plain, torch.optim.AdamW(plain.parameters(), lr=1e-3)), (engine, engine.optimizer):
        trainer = transformers.Trainer(model, args, train_dataset=rows, optimizers=(optimizer, None))
        trainer.train()
        trainer.save_model(str(tmp_path / "weights"))
        found.append([log[key] for log in trainer.state.log_history[:4] for key in ("loss", "grad_norm", "epoch")])
    _same(found)
    with pytest.raises(longshore.LongshoreError, match="is updated by engine.step"):
        transformers.Trainer(engine, args, train_dataset=rows).train()
    with pytest.raises(TypeError, match="takes no is_main_process=; engine.module.save_pretrained"):
        engine.save_pretrained(tmp_path / "more", is_main_process=True)
    engine.close()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_fabric_takes_an_engine(precision, make, tmp_path):
    fabric, found = pytest.importorskip("lightning.fabric"), []
    for model, optimizer in _pair(make):
        f, losses = fabric.Fabric(accelerator="cpu", devices=1, precision=precision), []
        model, optimizer = f.setup(model, optimizer)
        state = {"model": model, "optimizer": optimizer}
        for n, x in enumerate(2 * DATA):
            loss = loss_of(model, x)
            f.backward(loss)
            f.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if n == 3:
                f.save(tmp_path / "state", state)
        f.load(tmp_path / "state", state)
        losses.append(loss_of(model, DATA[0]).item())
        assert abs(losses[4] - losses[8]) < 1e-4 and len(list(model.parameters())) == 6
        found.append(losses)
    _same(found)


@pytest.mark.parametrize(
    "more", [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}]
)
def test_lightning_takes_an_engine(more, make, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, net, optimizer):
            super().__init__()
            self.net, self.made, self.losses = net, optimizer, []

        def configure_optimizers(self):
            return {"optimizer": self.made, "lr_scheduler": torch.optim.lr_scheduler.StepLR(self.made, 1, 0.5)}

        def training_step(self, x, n):
            self.losses.append((loss := loss_of(self.net, x)).item())
            return loss

        def validation_step(self, x, n):
            self.losses += [float(self.net.training), loss_of(self.net, x).item()]

    found, loader = [], torch.utils.data.DataLoader(DATA, batch_size=None)
    for model, optimizer in _pair(make):
        module = Module(model, optimizer)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            default_root_dir=tmp_path,
            enable_progress_bar=False,
            enable_model_summary=False,
            **more,
        )
        trainer.fit(module, loader, loader)
        saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)["state_dict"]
        assert saved.keys() == {f"net.{name}": 0 for name in net().state_dict()}.keys()
        module.load_state_dict(saved)
        found.append(module.losses)
    _same(found)


def test_ddp_is_refused(make):
    engine = make(net())
    made = not distributed.is_initialized()  # an earlier test of this process may have made one
    if made:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(longshore.LongshoreError, match="the engine adds up the gradients of all ranks itself"):
            nn.parallel.DistributedDataParallel(engine)
    finally:
        if made:
            distributed.destroy_process_group()
    engine.backward(engine(torch.ones(2, 8)).sum())
    engine.step()
