"""The model's weights as one dict or one file: methods of DeepSpeedEngine."""

from __future__ import annotations

import os
from typing import Any

from ..integrations.deepspeed_config import logger
from ..integrations.deepspeed_resume import write
from ..model import adapters
from ..model.blocks import persistent_buffers
from ..run import export


class WholeWeights:
    """Of several ranks, all call these methods, and rank 0 has and writes the weights."""

    _core: Any
    module: Any
    settings: Any

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        """All parameters in their dtype of forward, mapped from a file, so that the system may take the memory back.
        None on ranks but the first, as in DeepSpeed."""
        frozen = set()
        if exclude_frozen_parameters:
            frozen = {n for n, p in self.module.named_parameters(remove_duplicate=False) if not p.requires_grad}
            if adapters.saved_alone(self.module):  # peft also saves a resized vocabulary
                frozen -= adapters.names_of(self.module)
        place = os.path.dirname(self._core.state.path)
        state = self._core.cycle.open_state("save_16bit_model")
        self._core.cycle.settle()
        out = state.by_rank_0(
            "save_16bit_model()",
            lambda: export.through_files(place, lambda directory: export.save(self._core, directory, whole=True)),
        )
        if out is None:
            return None
        out = {name: value for name, value in out.items() if name not in frozen}
        for block in self._core.layout.blocks:
            for tensor in block.tensors:
                out.update({name: out[tensor.name] for name in tensor.names if tensor.name in out})
        return out

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict
    module_state_dict = _zero3_consolidated_16bit_state_dict

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike,
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the parameters as one file. Returns False if the configuration does not ask for it, like DeepSpeed."""
        if self.settings.stage == 3 and not self.settings.gathers:
            logger.warning(
                f"{save_filename} is not saved: zero_optimization.stage3_gather_16bit_weights_on_model_save is false"
            )
            return False
        values = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if values is None:
            return True
        os.makedirs(save_dir, exist_ok=True)
        if safe := save_filename.endswith(".safetensors"):
            first = {tensor.name for block in self._core.layout.blocks for tensor in block.tensors}
            first |= persistent_buffers(self.module).keys()  # safetensors takes tied tensors once
            values = {name: value for name, value in values.items() if name in first}
        write(values, os.path.join(save_dir, save_filename), safe)
        return True

    save_fp16_model = save_16bit_model
