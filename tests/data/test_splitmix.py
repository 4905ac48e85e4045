"""The numbers of SplitMix64 are the published ones, in NumPy and in torch."""

import numpy as np
import torch

from study.data.deduplication import token_hashes
from study.data.splitmix import GOLDEN, mixed

FROM_ZERO = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
"""The first outputs from the state 0, as of Java's SplittableRandom(0)."""


def test_the_numbers_are_the_published_ones() -> None:
    assert token_hashes(5).tolist() == FROM_ZERO
    assert mixed(torch.arange(1, 6) * GOLDEN).numpy().view(np.uint64).tolist() == FROM_ZERO


def test_torch_and_numpy_agree() -> None:
    numbers = np.random.default_rng(0).integers(-(2**63), 2**63, 1000)
    assert mixed(torch.from_numpy(numbers)).tolist() == mixed(numbers).tolist()
