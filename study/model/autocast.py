"""Products in bf16 with weights in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from study.counting.memory import Device, Precision


def autocast(device: str, precision: Precision) -> torch.autocast:
    """Run products in the block in bf16 if that is the precision."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def multiplies_in_bf16(device: Device) -> bool:
    """Whether a device multiplies in bf16 natively: a GPU without emulation, or a CPU with AVX512-BF16."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported())


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a tensor's products: autocast's if enabled, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
