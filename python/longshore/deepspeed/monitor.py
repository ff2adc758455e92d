"""Writes losses and rates to TensorBoard, CSV files or Weights & Biases, beside the run's own metrics.jsonl."""

import csv
import os

from ..integrations.deepspeed_config import ConfigError


class Monitors:
    """The writers that a configuration enables."""

    def __init__(self, wanted):
        """wanted: {"tensorboard" | "csv_monitor" | "wandb": its part of the configuration}."""
        self.writers: list = []
        for kind, said in wanted.items():
            try:
                self.writers.append(_KINDS[kind](said))
            except ImportError as e:
                raise ConfigError(f"{kind}.enabled: {e.name} is not installed: pip install {kind}") from None

    def write(self, values, samples):
        """Writes values, [(label, number)]. samples: how many samples the model has seen."""
        for writer in self.writers:
            writer.write(values, samples)

    def close(self):
        for writer in self.writers:
            writer.close()


def _directory(said):
    return os.path.join(said.get("output_path") or "", said.get("job_name") or "DeepSpeedJobName")


class _Csv:
    def __init__(self, said):
        self.directory = _directory(said)
        os.makedirs(self.directory, exist_ok=True)

    def write(self, values, samples):
        for label, value in values:
            path = os.path.join(self.directory, label.replace("/", "_").replace(" ", "_") + ".csv")
            new = not os.path.exists(path)
            with open(path, "a", newline="", encoding="utf-8") as f:
                out = csv.writer(f)
                if new:
                    out.writerow(["step", label.rpartition("/")[2]])
                out.writerow([samples, value])

    def close(self):
        pass


class _TensorBoard:
    def __init__(self, said):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(_directory(said))

    def write(self, values, samples):
        for label, value in values:
            self.writer.add_scalar(label, value, samples)
        self.writer.flush()

    def close(self):
        self.writer.close()


class _Wandb:
    def __init__(self, said):
        import wandb

        self.run = wandb.init(
            project=said.get("project") or "deepspeed", group=said.get("group"), entity=said.get("team")
        )

    def write(self, values, samples):
        self.run.log(dict(values), step=samples)

    def close(self):
        self.run.finish()


_KINDS = {"csv_monitor": _Csv, "tensorboard": _TensorBoard, "wandb": _Wandb}
