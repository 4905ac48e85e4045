"""Matrix products in bf16 beside weights in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from study.counting.memory import Precision


def autocast(device: str, precision: Precision) -> torch.autocast:
    """Within, products are in bf16 on this type of device where that is the precision."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype that products of a tensor run in: that of autocast where it is on, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
