"""What DeepSpeed's engine counts."""


class Counters:
    """Beside the run's steps; commits with them."""

    follows_the_step = True

    def __init__(self):
        self.global_steps = self.global_samples = self.micro_steps = self.skipped_steps = 0

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def counter(name):
    """An attribute of an engine, which scripts also write to."""
    return property(lambda engine: getattr(engine.counters, name),
                    lambda engine, value: setattr(engine.counters, name, value))
