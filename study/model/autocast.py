"""Matrix products in bf16 beside weights in fp32."""

from __future__ import annotations

import torch

from study.memory import Precision


def autocast(device: str, precision: Precision) -> torch.autocast:
    """Within, products are in bf16 on this type of device where that is the precision."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")
