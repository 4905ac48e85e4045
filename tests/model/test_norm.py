"""LayerNorm under autocast: reckoned in fp32, and rounded to the precision of the products on a GPU alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from study.model import layers
from study.model.layers import NORM_EPSILON, LayerNorm
from tests.needs import needs_gpu


def normed(device: str, x: Tensor, added: Tensor | None) -> tuple[Tensor, LayerNorm]:
    layer = LayerNorm(x.shape[-1], eps=NORM_EPSILON).to(device)
    with torch.no_grad():
        layer.weight.add_(torch.linspace(-0.5, 0.5, x.shape[-1], device=device))
    with torch.autocast(device, torch.bfloat16):
        return layer(x, added), layer


def test_it_is_the_norm_of_the_sum_and_autocast_on_a_cpu_leaves_it_in_fp32() -> None:
    x, added = torch.randn(2, 3, 5, 64).unbind(0)
    actual, layer = normed("cpu", x, added)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, nn.functional.layer_norm(x + added, (64,), layer.weight, layer.bias, NORM_EPSILON))
    torch.testing.assert_close(
        normed("cpu", x, None)[0], nn.functional.layer_norm(x, (64,), layer.weight, layer.bias, NORM_EPSILON)
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_a_rounded_norm_is_the_exact_one_up_to_one_rounding(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        monkeypatch.setattr(layers, "rounds", lambda x: torch.is_autocast_enabled(x.device.type))
    torch.manual_seed(0)
    stream = (8 * torch.randn(7, 64, device=device)).bfloat16().requires_grad_()
    added = torch.randn(7, 64, device=device).bfloat16()
    actual, layer = normed(device, stream, added)
    assert actual.dtype == torch.bfloat16
    exact = stream.detach().clone().float().requires_grad_()
    expected = nn.functional.layer_norm(exact + added.float(), (64,), layer.weight, layer.bias, NORM_EPSILON)
    torch.testing.assert_close(actual, expected.bfloat16(), rtol=0, atol=0, msg="the sum was rounded before it was normed")
    upstream = torch.randn_like(actual)
    torch.autograd.backward(actual, upstream)
    torch.autograd.backward(expected, upstream.float())
    assert stream.grad is not None
    assert exact.grad is not None
    assert stream.grad.dtype == torch.bfloat16
    torch.testing.assert_close(stream.grad, exact.grad.bfloat16(), rtol=2**-7, atol=1e-6)
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
