"""deepspeed.ops: DeepSpeed's optimizer classes. They only hold settings; the engine makes the steps."""

import torch

from ..errors import LongshoreError
from ..step.optimizer_table import OPTIMIZERS


def _refuse_step(self, closure=None):
    raise LongshoreError(
        f"{type(self).__name__}.step: give the optimizer to deepspeed.initialize(), whose engine makes the step"
    )


class DeepSpeedCPUAdam(torch.optim.AdamW):
    """AdamW with DeepSpeed's arguments. adamw_mode=False adds weight decay to the gradient, like Adam."""

    def __init__(
        self,
        model_params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        amsgrad=False,
        adamw_mode=True,
        fp32_optimizer_states=True,
        adam_w_mode=None,
        set_grad_none=True,
    ):
        if not bias_correction or amsgrad:
            raise LongshoreError("DeepSpeedCPUAdam: bias_correction=False and amsgrad=True are not supported")
        super().__init__(model_params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.adamw_mode = adamw_mode if adam_w_mode is None else adam_w_mode

    step = _refuse_step


FusedAdam = DeepSpeedCPUAdam


for _known in OPTIMIZERS.values():
    for _name in _known.deepspeed_classes:
        _has = {"step": _refuse_step, "__module__": __name__, "__doc__": f"torch.optim's {_known.torchs.__name__}."}
        globals()[_name] = type(_name, (_known.torchs,), _has)
