"""Marks of tests that need what not every machine has."""

from __future__ import annotations

import pytest
import torch

from study.training.execution import can_compile

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
needs_compiler = pytest.mark.skipif(
    not can_compile("cpu"), reason="torch.compile finds no C++ compiler or no Python headers here"
)
