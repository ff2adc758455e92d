"""Devices that modules compute on."""

import torch


def accelerators():
    """Kinds of devices beside the CPU that this process can compute on."""
    found = torch._C._get_accelerator() if hasattr(torch._C, "_get_accelerator") else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return () if found.type == "cpu" else (found.type,)
