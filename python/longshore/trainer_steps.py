"""Steps of transformers' Trainer layer by layer: it collects the micro-batches of a step first, so that the first
training_step() computes all of them, and the others say what came of theirs."""

import torch


def extend(trainer_class, engine_of):
    """Gives a Trainer's class such steps, once. engine_of(trainer): its engine, or None where it has none."""
    if getattr(trainer_class, "_longshore_steps", False):
        return
    trainer_class._longshore_steps = True
    get_batch_samples, training_step = trainer_class.get_batch_samples, trainer_class.training_step

    def together(self, *args, **kwargs):
        samples, items = get_batch_samples(self, *args, **kwargs)
        self._longshore_samples, self._longshore_losses = list(samples), None
        return samples, items

    def step(self, model, inputs, num_items_in_batch=None):
        engine, samples = engine_of(self), getattr(self, "_longshore_samples", None)
        if engine is None or not samples or len(samples) < 2 or not getattr(self.args, "layer_major", True):
            return training_step(self, model, inputs, num_items_in_batch)
        if self._longshore_losses is None:
            model.train()
            batches = [self._prepare_inputs(batch) for batch in samples]
            self._longshore_losses = engine.backward_together(
                batches, lambda batch: loss_of(self, model, batch, num_items_in_batch), divide=False
            )
            self._longshore_left = list(self._longshore_losses)
        loss = self._longshore_left.pop(0)
        if not self._longshore_left and hasattr(engine, "step_together"):
            engine.step_together()
        return torch.tensor(loss, device=self.args.device)

    trainer_class.get_batch_samples, trainer_class.training_step = together, step


def loss_of(trainer, model, batch, items):
    """As training_step() has it, ready for backward."""
    with trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(model, batch, num_items_in_batch=items)
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is None:
        scaled = (trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None
    return loss if scaled else loss / trainer.current_gradient_accumulation_steps
