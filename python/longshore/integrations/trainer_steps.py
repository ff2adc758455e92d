"""Makes transformers' Trainer compute the micro-batches of a step together, so that each layer is fetched once.

The Trainer collects the micro-batches of a step first. The first training_step() computes all of them; the others
return the losses of theirs. By default this happens only if nothing but transformers' own code runs between
micro-batches. Otherwise they are computed one after the other.
"""

import functools
import logging

import torch

from ..errors import LongshoreError
from ..run.engine_surface import core_of
from ..step.trusted_code import own_code_of
from ..torch_internals import version_of

_log = logging.getLogger("longshore")


class _Step:
    """The micro-batches of a step, as get_batch_samples() returned them."""

    def __init__(self, samples):
        self.samples, self.losses, self.number = samples, None, 0
        self.note()

    def note(self):
        """Remembers the micro-batches' present contents."""
        self.seen = [_contents(sample) for sample in self.samples]

    def next(self, inputs):
        """Whether these inputs are the next micro-batch, unchanged."""
        number, self.number = self.number, self.number + 1
        return inputs is self.samples[number] and _contents(inputs) == self.seen[number]


def _contents(sample):
    """What identifies a micro-batch's contents: its keys, objects and tensor versions."""
    items = sample.items() if hasattr(sample, "items") else ()
    return [(key, id(value), version_of(value) if isinstance(value, torch.Tensor) else None) for key, value in items]


def extend(trainer_class, engine_of):
    """Gives a Trainer's class such steps, once. engine_of(trainer) returns its engine or None."""
    if "longshore_steps" in vars(trainer_class):
        return
    trainer_class.longshore_steps = True
    names = {"get_batch_samples", "training_step"}
    own = {name: method for name, method in vars(trainer_class).items() if name in names}

    def before(self, name):
        """The original method."""
        return functools.partial(own[name], self) if name in own else getattr(super(trainer_class, self), name)

    def together(self, epoch_iterator, num_batches, *args, **kwargs):
        position = getattr(self, "longshore_position", None)
        if position is not None:
            position.losses, epoch_iterator = [], position.drawing(epoch_iterator)
        samples, items = before(self, "get_batch_samples")(epoch_iterator, num_batches, *args, **kwargs)
        if (engine := engine_of(self)) is not None:
            core_of(engine).accumulate = max(len(samples), 1)
        # too few micro-batches at the end of streamed data make no step; their gradients join the next step's
        self._longshore_step = _Step(samples) if 1 < len(samples) == num_batches else None
        return samples, items

    def step(self, *args, **kwargs):
        position = getattr(self, "longshore_position", None)
        if position is not None and position.replaying:
            return position.next_loss()
        loss = computed(self, *args, **kwargs)
        if position is not None:
            position.losses.append(float(loss))
        return loss

    def computed(self, model, inputs, num_items_in_batch=None):
        engine, made = engine_of(self), getattr(self, "_longshore_step", None)
        if made is None or engine is None or made.losses is None and not _goes_together(self, engine, own.values()):
            self._longshore_step = None
            return before(self, "training_step")(model, inputs, num_items_in_batch)
        if not made.next(inputs):
            raise LongshoreError(
                f"layer_major=True: {type(self).__name__}.training_step() got other inputs than the "
                "micro-batch has, but its first call has computed all micro-batches; leave "
                "layer_major out to compute one after the other"
            )
        if made.losses is None:
            model.train()

            def loss(batch):
                return loss_of(self, model, self._prepare_inputs(batch), num_items_in_batch)

            made.losses = self._longshore_losses = engine.backward_together(made.samples, loss, divide=False)
            made.note()
        if made.number == len(made.losses) and hasattr(engine, "step_together") and self.accelerator.sync_gradients:
            engine.step_together()
        return torch.tensor(made.losses[made.number - 1], device=self.args.device)

    trainer_class.get_batch_samples, trainer_class.training_step = together, step


def _goes_together(trainer, engine, methods):
    """Whether a step's micro-batches may be computed together; logs the code that prevents it, once."""
    core, said = core_of(engine), (trainer.args, getattr(engine, "settings", None))
    wanted = next((how.layer_major for how in said if getattr(how, "layer_major", None) is not None), None)
    if core.cycle.backwards or wanted is False:
        return False
    code = None if wanted else own_code_of(trainer, core.module, methods)
    if code is not None and not getattr(trainer, "longshore_said", False):
        trainer.longshore_said = True
        _log.info(
            f"{code} may keep something from one micro-batch to the next: those of a step are computed one after the "
            "other (layer_major=True computes them together, and fetches each layer once for all of them)"
        )
    return code is None


def loss_of(trainer, model, batch, items):
    """The loss of a micro-batch as training_step() computes it, ready for backward."""
    with trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(model, batch, num_items_in_batch=items)
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is None:
        scaled = (trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None
    return loss if scaled else loss / trainer.current_gradient_accumulation_steps
