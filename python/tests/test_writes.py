"""What is written to parameters, by modules and by scripts: it counts as in PyTorch, or is refused by name with what
works."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import longshore
from longshore.native import lib
from longshore.step import parameter_state
from test_loop import engine_for

pytestmark = pytest.mark.usefixtures("one_thread")


class Quantizer(nn.Module):
    """Layers around a codebook that forward() moves by what it is given as `write`."""

    def __init__(self, write, trains=False, layers=3, first=1):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])
        self.book = nn.Embedding(12, 8)
        self.book.weight.requires_grad_(trains)
        self.write, self.first, self.calls = write, first, 0

    def forward(self, x):
        self.calls += 1
        for n, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if n == 1:
                chosen = torch.cdist(x, self.book.weight).argmin(1)
                q = self.book(chosen)
                if self.calls >= self.first:
                    self.write(self.book.weight)
                x = x + (q - x).detach() + 0.1 * q
        return x.square().mean()


class InLayer(nn.Module):
    """Codebooks in layers that take turns in one slot. another: whose is written to, by the last one."""

    class Layer(nn.Linear):
        def forward(self, x, write):
            out = torch.tanh(super().forward(x))
            write(self.weight)
            return out

    def __init__(self, write, another=None):
        super().__init__()
        self.layers = nn.ModuleList([self.Layer(8, 8) for _ in range(3)])
        self.write, self.another = write, another

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            if self.another is None:
                x = layer(x, self.write if n == 1 else lambda w: None)
            else:
                x = layer(x, (lambda w: self.write(self.layers[self.another].weight)) if n == 2 else lambda w: None)
        return x.square().mean()


def batches(n=4, width=8):
    return [torch.randn(5, width, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def assign(p, value):
    p.data = value


WRITES = {
    "copy": lambda p: p.data.copy_(p.data * 0.9),
    "reordered": lambda p: p.data.copy_(p.data.roll(1, 0)),
    "row": lambda p: p.data[3].mul_(2),
    "item": lambda p: p.data.__setitem__((0, 0), 1.0),
    "assigned": lambda p: assign(p, p.data * 2),
    "detached": lambda p: p.detach().data.mul_(2),
    "viewed": lambda p: p.detach()[2:].data.add_(1),
    "numpy": lambda p: p.detach().numpy().__imul__(2),
    "version": lambda p: p.detach().mul_(2),
    "gradient": lambda p: torch.no_grad()(p[3].mul_)(2),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_codebook_that_forward_moves(kind, tmp_path, seed, monkeypatch):
    """In the first step, wherever it lies, whether it trains or not."""
    for n, (trains, how) in enumerate(
        [
            (False, {}),
            (True, {}),
            (False, {"storage": "bf16"}),
            (True, {"slots": 1}),
            (False, {"slots": 1, "storage": "bf16"}),
        ]
    ):
        model = Quantizer(WRITES[kind], trains)
        with (
            monkeypatch.context() as patched,
            engine_for(model, tmp_path, f"{kind}{n}", monkeypatch=patched, **how) as engine,
        ):
            before, value = engine.digest(), model.book.weight.detach() * 1
            with pytest.raises(
                longshore.AbsentParameterError, match="^book.weight: .*forward.*register_buffer.*longshore.resident"
            ):
                engine.backward(engine(batches()[0]))
                engine.step()
            engine.drop_gradients()
            assert engine.digest() == before and torch.equal(model.book.weight.detach() * 1, value)
            with pytest.raises(longshore.AbsentParameterError, match="^book.weight: .*register_buffer"):
                engine.train_batch(batches()[:2], lambda loss, batch: loss)
            assert engine.digest() == before


@pytest.mark.parametrize("kind", ["copy", "reordered", "row", "assigned", "version"])
def test_a_codebook_that_later_steps_move(kind, tmp_path, seed):
    model = Quantizer(WRITES[kind], first=3)
    with engine_for(model, tmp_path) as engine:
        for batch in batches()[:2]:
            engine.backward(engine(batch))
            engine.step()
        with pytest.raises(longshore.AbsentParameterError, match="^book.weight: "):
            engine(batches()[2])


def test_a_codebook_whose_memory_is_kept(tmp_path, seed):
    kept = []

    def write(p):
        kept.append(p.data)
        if len(kept) > 2:
            kept[0].mul_(2)

    with engine_for(Quantizer(write), tmp_path) as engine:
        for batch in batches()[:2]:
            engine.backward(engine(batch))
            engine.step()
        with pytest.raises(longshore.AbsentParameterError, match="^book.weight: "):
            engine(batches()[2])


@pytest.mark.parametrize("kind", ["copy", "reordered", "row", "version", "gradient"])
@pytest.mark.parametrize("another", [None, 0])
def test_a_layer_that_forward_moves(kind, another, tmp_path, seed, monkeypatch):
    for slots in 1, 3:
        with (
            monkeypatch.context() as patched,
            engine_for(
                InLayer(WRITES[kind], another), tmp_path, f"run{slots}", slots=slots, monkeypatch=patched
            ) as engine,
        ):
            before = engine.digest()
            with pytest.raises(
                longshore.AbsentParameterError,
                match=f"^layers.{1 if another is None else 0}.weight: .*(register_buffer|gradient)",
            ):
                engine.backward(engine(batches()[0]))
            engine.drop_gradients()
            assert engine.digest() == before


def test_what_is_only_looked_at_is_not_refused(tmp_path, seed):
    """And what is put back before its block leaves."""
    seen = []

    def look(p):
        kept = p.data.clone()
        p.data.mul_(2)
        p.data.copy_(kept)
        seen.append(
            (
                float(p.data.sum()),
                {type(p), type(copy.deepcopy(p)), type(nn.Parameter(p)), type(nn.Parameter(p.data))},
                p.detach().numpy().sum(),
            )
        )

    model, plain = Quantizer(look, True), Quantizer(look, True)
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    with engine_for(model, tmp_path, lr=1e-2, weight_decay=0.01, clip=0) as engine:
        for batch in batches():
            loss, expected = engine(batch), plain(batch)
            assert abs(loss.item() - expected.item()) < 1e-6
            engine.backward(loss)
            engine.step()
            expected.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(kinds == {nn.Parameter} for _, kinds, _ in seen)


def test_a_hook_of_backward_that_writes(tmp_path, seed):
    model = Quantizer(lambda p: None, True)
    with engine_for(model, tmp_path) as engine:
        engine.backward(engine(batches()[0]))
        engine.step()
        model.layers[0].register_full_backward_hook(lambda module, *g: module.weight.data.mul_(0.5) and None)
        with pytest.raises(longshore.AbsentParameterError, match="^layers.0.weight: "):
            engine.backward(engine(batches()[0]))
        assert engine.step_number == 1


class Bag(nn.Module):
    def __init__(self, kind, max_norm, **how):
        super().__init__()
        self.table, self.head = kind(50, 8, max_norm=max_norm, **how), nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.table(ids)).square().mean()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_max_norm(kind, tmp_path, seed):
    """Is refused with what does the same."""
    model = Bag(kind, 0.5, norm_type=1.0)
    plain = copy.deepcopy(model)
    ids = [torch.randint(50, (4, 3), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    with engine_for(model, tmp_path, optimizer="sgd", lr=0.1, weight_decay=0, clip=0) as engine:
        with pytest.raises(
            longshore.AbsentParameterError,
            match=r"^table.weight: .*max_norm=None.*embedding_renorm_\(weight.data, ids, 0.5, "
            r"1.0\).*resident",
        ):
            engine(ids[0])
        model.table.max_norm = None
        weight = model.table.weight
        for i in ids:
            with longshore.resident(weight, write=True):
                torch.embedding_renorm_(weight.data, i, 0.5, 1.0)
            loss, expected = engine(i), plain(i)
            assert abs(loss.item() - expected.item()) < 1e-6
            engine.backward(loss)
            engine.step()
            expected.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.allclose(weight.detach() * 1, plain.table.weight, atol=1e-6)


class Replaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.book = nn.Linear(8, 8), nn.Parameter(torch.randn(4, 8), requires_grad=False)

    def forward(self, x):
        loss = (self.encode(x) @ self.book.t()).square().mean()
        self.book = nn.Parameter(self.book.detach() * 0.5, requires_grad=False)
        return loss


def test_a_parameter_that_is_replaced(tmp_path, seed):
    """In forward, and before what would be without it."""
    with engine_for(Replaces(), tmp_path) as engine:
        with pytest.raises(longshore.LongshoreError, match="^book: was replaced in forward.*register_buffer"):
            engine(batches()[0])
    with engine_for(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), tmp_path, "other") as engine:
        engine.backward(engine(batches()[0]).square().mean())
        engine.module[0].weight = nn.Parameter(torch.zeros(8, 8))
        with pytest.raises(longshore.LongshoreError, match="^0.weight: .*replaced after wrap"):
            engine.step()
        assert engine.step().step == 1
        engine.module[1].bias = nn.Parameter(torch.zeros(8))
        with pytest.raises(longshore.LongshoreError, match="^1.bias: .*replaced after wrap"):
            engine.save_pretrained(tmp_path / "saved")

        other = nn.Linear(8, 8)
        engine.module[1] = other
        with pytest.raises(longshore.LongshoreError, match="^1.(weight|bias): its module is not in the model"):
            engine.save_pretrained(tmp_path / "saved")


OUTSIDE = {
    "clamp_": lambda m: [p.data.clamp_(-0.01, 0.01) for p in m.parameters()],
    "init": lambda m: nn.init.xavier_uniform_(m[0].weight),
    "orthogonal_": lambda m: nn.init.orthogonal_(m[0].weight),
    "reset_parameters": lambda m: m[0].reset_parameters(),
    "renorm_": lambda m: m[0].weight.data.renorm_(2, 0, 0.5),
    "vector_to_parameters": lambda m: nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(m.parameters()).detach() * 0.5, m.parameters()
    ),
    "lerp": lambda m: torch._foreach_lerp_(
        [p.data for p in m.parameters()], [torch.zeros(p.shape) for p in m.parameters()], 0.1
    ),
    "prune": lambda m: m[0].weight.data.masked_fill_(m[0].weight.data.abs() < 0.1, 0),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_changes_between_steps(kind, tmp_path, seed):
    """They are refused with two ways of which the first does the same, and the second is gone at its end."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    plain, change, x = copy.deepcopy(model), OUTSIDE[kind], batches(3)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine:
        for batch in x:
            engine.backward(engine(batch).square().mean())
            engine.step()
            plain(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with pytest.raises((longshore.AbsentParameterError, RuntimeError), match='write=True.*write="temporary"'):
                change(model)
            random = torch.get_rng_state()
            with longshore.resident(model, write="temporary"):
                change(model)
            torch.set_rng_state(random)
            with longshore.resident(model, write=True):
                change(model)
            torch.set_rng_state(random)
            change(plain)
            assert all(
                torch.allclose(p.detach() * 1, q, atol=1e-6) for p, q in zip(model.parameters(), plain.parameters())
            )


class Contrast(nn.Module):
    """A trained encoder, one that follows it, and a temperature that is kept in bounds."""

    def __init__(self, width=8):
        super().__init__()
        self.query = nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        with torch.no_grad():
            key = self.key(x + 0.1)
        return nn.functional.cross_entropy(self.query(x) @ key.T * self.scale.exp(), torch.arange(len(x)))

    def move(self, writing=lambda layer: contextlib.nullcontext()):
        with torch.no_grad():
            with writing(self.scale):
                self.scale.clamp_(1.9995, 2.0005)  # steps of 1e-3 leave that
            for key, query in zip(self.key, self.query):
                values = [k * 0.9 + q * 0.1 for k, q in zip(key.parameters(), query.parameters())]
                with writing(key):
                    for k, value in zip(key.parameters(), values):
                        k.copy_(value)


def writing(layer):
    return longshore.resident(layer, write=True)


@pytest.mark.parametrize("slots", [1, None])
@pytest.mark.parametrize("how", [{}, {"moments": "8bit", "optimizer": "adam"}, {"storage": "bf16"}], ids=str)
def test_writes_right_after_a_step_are_part_of_it(how, slots, tmp_path, seed, monkeypatch):
    model = Contrast()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.1)
    with engine_for(model, tmp_path, slots=slots, monkeypatch=monkeypatch, clip=0, **how) as engine:
        for number, x in enumerate(batches(4), 1):
            engine.backward(engine(x))
            engine.step()
            model.move(writing)
            plain(x).backward()
            optimizer.step()
            optimizer.zero_grad()
            plain.move()
            assert engine.step_number == number and abs(model.scale.item() - 2) < 5.01e-4
        now = [p.detach().clone() for p in model.parameters()]
        if not how:
            for p, q in zip(now, plain.parameters()):
                torch.testing.assert_close(p, q.detach(), rtol=1e-5, atol=1e-6)
        longshore.verify(engine)
        engine.settle()
        with writing(model.scale), torch.no_grad():
            model.scale.add_(1)
        assert engine.step_number == 5
        with writing(model.scale), torch.no_grad():
            model.scale.sub_(1)
    with longshore.resume(tmp_path / "run", model=Contrast) as engine:
        assert engine.step_number == 6
        for p, q in zip(engine.parameters(), now):
            torch.testing.assert_close(p.detach() + 0, q, rtol=1e-6, atol=0)


def test_writes_into_state_that_is_held_in_memory(tmp_path, seed, monkeypatch):
    """The next update begins with them, wherever it runs."""
    digests = []
    for slots in (None, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(*[nn.Linear(896, 896) for _ in range(3)])
        with engine_for(model, tmp_path, f"run{slots}", slots, monkeypatch=monkeypatch) as engine:
            for x in torch.randn(4, 2, 896):
                engine.backward(engine(x).square().mean())
                engine.step()
                with writing(model[2]), torch.no_grad():
                    model[2].weight.clamp_(-0.02, 0.02)
            digests.append(engine.digest())
            assert slots or engine._core.gradients.step.tell(lib.shore_step_state_bytes)
    assert digests[0] == digests[1]


def test_a_write_that_fails_leaves_the_step_before(tmp_path, seed, monkeypatch):
    model, x = Contrast(), batches(1)[0]
    with engine_for(model, tmp_path) as engine:
        engine.backward(engine(x))
        engine.step()
        digest = engine.digest()
        engine.backward(engine(x))
        engine.step()
        with pytest.raises(longshore.NotFiniteError, match="scale: holds a value that is not finite"):
            with writing(model.scale), torch.no_grad():
                model.scale.fill_(float("nan"))
        assert engine.step_number == 2 and bool(model.scale.isfinite())

        def fail(*a, **k):
            raise longshore.LongshoreError("no room")

        with monkeypatch.context() as patched, pytest.raises(longshore.LongshoreError, match="no room"):
            patched.setattr(engine._core.state, "store_values", fail)
            with writing(model.scale), torch.no_grad():
                model.scale.add_(1)
        assert engine.step_number == 1 and engine.digest() == digest
        engine.backward(engine(x))
        assert engine.step().step == 2
        engine.backward(engine(x))
        with pytest.raises(longshore.LongshoreError, match="in the middle of a step"):
            with writing(model.scale), torch.no_grad():
                model.scale.add_(1)


PARAMETRIZES = {
    "weight_norm": lambda m: nn.utils.parametrizations.weight_norm(m[0]),
    "weight_norm of before": lambda m: nn.utils.weight_norm(m[0]),
    "spectral_norm": lambda m: nn.utils.parametrizations.spectral_norm(m[0]),
    "orthogonal": lambda m: nn.utils.parametrizations.orthogonal(m[0]),
    "prune": lambda m: prune.l1_unstructured(m[0], "weight", 0.5),
    "parameter": lambda m: nn.Parameter(m[0].weight.data),
    "data": lambda m: setattr(m[0].weight, "data", torch.zeros(8, 8)),
}


@pytest.mark.parametrize("kind", PARAMETRIZES)
def test_parametrizing_after_wrap(kind, tmp_path, seed):
    with engine_for(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), tmp_path) as engine:
        with pytest.raises(longshore.LongshoreError, match="^0.weight: .* before (longshore.)?wrap"):
            PARAMETRIZES[kind](engine.module)
            engine(batches()[0])


@pytest.mark.parametrize("begin", ["engine", "loss"])
def test_writing_within_a_step_that_has_begun(begin, tmp_path, seed):
    """Gradients stay, and the change is not made."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    plain, x = copy.deepcopy(model), batches()[0]
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    plain(x).square().mean().backward()
    optimizer.step()
    weight = model[0].weight
    with engine_for(model, tmp_path, lr=1e-2, clip=0) as engine:
        engine.backward(engine(x).square().mean()) if begin == "engine" else engine(x).square().mean().backward()
        with pytest.raises(
            longshore.LongshoreError, match='^0.weight: .*in the middle of a step.*zero_grad.*write="temporary"'
        ):
            with longshore.resident(weight, write=True):
                weight.data.mul_(2)
        with pytest.raises(longshore.LongshoreError, match="^0.weight: .*in the middle of a step"):
            parameter_state.write(weight, "m", 0.0)
        with longshore.resident(model, write=True):
            pass
        engine.step()
        assert all(torch.allclose(p.detach() * 1, q, atol=1e-6) for p, q in zip(model.parameters(), plain.parameters()))
        engine.backward(engine(x).square().mean())
        engine.optimizer.zero_grad()
        with longshore.resident(weight, write=True):
            weight.data.zero_()
        assert not weight.detach().any()


def test_layers_that_are_thawed(tmp_path, seed):
    """As the refusal says: what trains at wrap() is frozen after it, and thawed again; weight decay leaves it alone
    meanwhile."""

    def model():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    with engine_for(model().requires_grad_(False).append(nn.Linear(8, 8)), tmp_path, "frozen") as engine:
        engine.module[0].requires_grad_(True)
        with pytest.raises(
            longshore.LongshoreError,
            match=r"^0.weight: is frozen.*requires_grad before wrap\(\).*freeze them after wrap\(\), "
            r"and thaw them again",
        ):
            engine(batches()[0])
    plain, ours = model(), model()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    with engine_for(ours, tmp_path, lr=1e-2, clip=0) as engine:
        for n, batch in enumerate(batches(6)):
            for m in plain, ours:
                m[0].requires_grad_(n > 2)
            engine.backward(engine(batch).square().mean())
            engine.step()
            plain(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.allclose(p.detach() * 1, q, atol=1e-6) for p, q in zip(ours.parameters(), plain.parameters()))


def test_adapters_that_are_activated_later(tmp_path, seed):
    peft = pytest.importorskip("peft")

    def model():
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
        out = peft.get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), config)
        out.add_adapter("other", config)
        return out

    with engine_for(model(), tmp_path, "frozen") as engine:
        engine.module.set_adapter("other")
        with pytest.raises(
            longshore.LongshoreError, match="lora_A.other.*adapters that are not active yet.*freeze them after"
        ):
            engine(batches()[0])
    plain, ours = model(), model()
    for m in plain, ours:
        for name, p in m.named_parameters():
            p.requires_grad_("lora_" in name)
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    with engine_for(ours, tmp_path, lr=1e-2, clip=0) as engine:
        for n, batch in enumerate(batches(4)):
            for m in plain, ours:
                m.set_adapter("other" if n % 2 else "default")
            engine.backward(engine(batch).square().mean())
            engine.step()
            plain(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.allclose(p.detach() * 1, q, atol=1e-6) for p, q in zip(ours.parameters(), plain.parameters()))


def test_ranks_that_are_allocated(tmp_path, seed):
    """AdaLoRA's loop, as its refusal says."""
    peft = pytest.importorskip("peft")

    def model():
        torch.manual_seed(seed)
        config = peft.AdaLoraConfig(
            init_r=4, target_r=2, tinit=1, tfinal=1, deltaT=1, total_step=6, target_modules=["0", "2"]
        )
        return peft.get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), config)

    plain, ours = model(), model()
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    adapters = [p for name, p in ours.named_parameters() if "lora_" in name]
    with engine_for(ours, tmp_path, lr=1e-2, clip=0) as engine:
        for n, batch in enumerate(batches(6)):
            plain(batch).square().mean().backward()
            optimizer.step()
            plain.base_model.update_and_allocate(n)
            optimizer.zero_grad()
            engine.backward(engine(batch).square().mean())
            engine.step()
            with pytest.raises(longshore.AbsentParameterError, match="update_and_allocate: .*resident"):
                ours.base_model.update_and_allocate(n)
            with longshore.resident(adapters, write=True):
                ours.base_model.update_and_allocate(n)
            engine.optimizer.zero_grad()
        found = {
            name: (p, q)
            for (name, p), (_, q) in zip(ours.named_parameters(), plain.named_parameters())
            if "lora_E" in name
        }
        assert any((q == 0).any() for _, q in found.values())
        assert all(torch.allclose(p.detach() * 1, q, atol=1e-6) for p, q in found.values())
