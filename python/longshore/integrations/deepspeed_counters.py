"""The counters of DeepSpeed's engine: steps, samples, micro-batches, skipped steps."""


class Counters:
    """The counters' values. They commit with each step of the run."""

    follows_the_step = True

    def __init__(self):
        self.global_steps = self.global_samples = self.micro_steps = self.skipped_steps = 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def counter(name):
    """A property of DeepSpeedEngine that reads and writes a counter."""
    return property(
        lambda engine: getattr(engine.counters, name), lambda engine, value: setattr(engine.counters, name, value)
    )
