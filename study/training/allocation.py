"""Memory of a process that trains: on a CPU what a step frees is kept for the next one, and what a model had is let go of."""

from __future__ import annotations

import ctypes
import gc

import torch

from study.counting.memory import Device

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have glibc's malloc keep freed memory in this process; False where the C library has no `mallopt`.

    By default it maps large tensors afresh and gives them back, so that each step touches its logits and gradients for the
    first time again: at 2x128 with 30,522 word pieces that is 73,000 page faults a step, a quarter of its time. The numbers
    are the same to the bit. Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))


def release_models(device: Device) -> None:
    """Free what trainings that are over have left: a Trainer and its module hold each other, and live until Python collects."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
