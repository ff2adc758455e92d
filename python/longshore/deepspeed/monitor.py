"""Writes losses and rates to TensorBoard, CSV files or Weights & Biases, beside the run's own metrics.jsonl."""

import csv
import os

from ..integrations.deepspeed_config import ConfigError


class Monitors:
    """The writers that a configuration enables."""

    def __init__(self, wanted):
        """wanted: {"tensorboard" | "csv_monitor" | "wandb": its part of the configuration}."""
        self.writers: list = []  # (write(values, samples), close())
        for kind, said in wanted.items():
            try:
                self.writers.append(_KINDS[kind](said))
            except ImportError as e:
                raise ConfigError(f"{kind}.enabled: {e.name} is not installed: pip install {kind}") from None

    def write(self, values, samples):
        """Writes values, [(label, number)]. samples: how many samples the model has seen."""
        for write, _ in self.writers:
            write(values, samples)

    def close(self):
        for _, close in self.writers:
            close()


def _directory(said):
    return os.path.join(said.get("output_path") or "", said.get("job_name") or "DeepSpeedJobName")


def _csv(said):
    directory = _directory(said)
    os.makedirs(directory, exist_ok=True)

    def write(values, samples):
        for label, value in values:
            path = os.path.join(directory, label.replace("/", "_").replace(" ", "_") + ".csv")
            new = not os.path.exists(path)
            with open(path, "a", newline="", encoding="utf-8") as f:
                csv.writer(f).writerows([["step", label.rpartition("/")[2]]] * new + [[samples, value]])

    return write, lambda: None


def _tensorboard(said):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(_directory(said))

    def write(values, samples):
        for label, value in values:
            writer.add_scalar(label, value, samples)
        writer.flush()

    return write, writer.close


def _wandb(said):
    import wandb

    run = wandb.init(project=said.get("project") or "deepspeed", group=said.get("group"), entity=said.get("team"))
    return lambda values, samples: run.log(dict(values), step=samples), run.finish


_KINDS = {"csv_monitor": _csv, "tensorboard": _tensorboard, "wandb": _wandb}
