"""Products through oneDNN are torch's up to rounding, repeat and resume bit for bit, and are chosen where MKL is slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from study.base import machine
from study.base.errors import InputError
from study.config.resources import Resources
from study.counting.architecture import Architecture
from study.executing import executors
from study.executing.slots import Slot
from study.model import layers
from study.model.layers import ALIGNED, Linear, aligned_product, multiply_through_onednn
from study.model.masked_language_model import MaskedLanguageModel
from study.running.launch import plan
from study.training import execution
from study.training.execution import Execution, resolve_kernels
from tests.model.test_model import randomised, small
from tests.model.test_model_successors import KINDS
from tests.small import config, losses, stop_after, trained, write_corpus
from tests.sweeps import sweep
from tests.transformers_models import theirs_of

pytestmark = pytest.mark.skipif(not execution.built_with("mkldnn"), reason="this torch was built without oneDNN")


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Sends small products through oneDNN too; gives the shapes of those that went there."""
    seen: list[tuple[int, ...]] = []
    original = layers.onednn_product

    def counted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return original(x, weight, bias)

    monkeypatch.setattr(layers, "LEAST_PRODUCTS", 1)
    monkeypatch.setattr(layers, "onednn_product", counted)
    monkeypatch.setattr(layers, "mkl_is_half_as_fast", lambda: False)
    return seen


def through_onednn(layer: Linear) -> Linear:
    multiply_through_onednn(layer)
    return layer


def drawn(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


INPUTS = {
    "a batch of sequences": drawn(3, 7, 24),
    "more rows than outputs": drawn(3, 7, 24).repeat(1, 3, 1),
    "one row": drawn(24),
    "no row": drawn(0, 24),
    "no sequence": drawn(2, 0, 24),
    "transposed": drawn(24, 5).t(),
    "every second column": drawn(5, 48)[:, ::2],
    "one row repeated": drawn(24).expand(5, 24),
    "sequences first": drawn(4, 6, 24).transpose(0, 1),
}


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", INPUTS)
def test_products_and_gradients_are_those_of_torch(
    name: str, biased: bool, everything: bool, of_any_size: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "mkl_is_half_as_fast", lambda: everything)
    layer, actual = Linear(24, 10, bias=biased), {}
    weight, bias = drawn(10, 48)[:, ::2].requires_grad_(), drawn(20)[::2].requires_grad_() if biased else None
    for layer.onednn in (False, True):
        x = INPUTS[name].clone(memory_format=torch.preserve_format).requires_grad_()
        y = layer.multiply(x, weight, bias)
        leaves = [x, weight, *([] if bias is None else [bias])]
        actual[layer.onednn] = [y, *torch.autograd.grad((y * y).sum() + y.sum(), leaves)]
    torch.testing.assert_close(actual[True], actual[False], rtol=1e-5, atol=1e-4)
    assert of_any_size or not INPUTS[name].numel()


@pytest.mark.parametrize("outputs", [10, 40])
@pytest.mark.parametrize(("everything", "products"), [(True, 3), (False, 2)])
def test_where_mkl_is_half_as_fast_the_gradient_by_the_weights_goes_through_onednn_too(
    everything: bool, products: int, outputs: int, of_any_size: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "mkl_is_half_as_fast", lambda: everything)
    layer, x = through_onednn(Linear(24, outputs)), drawn(50, 24).requires_grad_()
    torch.autograd.backward(layer(x).square().sum())
    assert len(of_any_size) == products
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, 2 * layer(x).t() @ x, rtol=1e-5, atol=1e-4)
    assert layer.weight.grad.is_contiguous()


@pytest.mark.parametrize(
    ("vendor", "family", "half"), [("AuthenticAMD", 26, True), ("AuthenticAMD", 25, False), ("GenuineIntel", 26, False)]
)
def test_mkl_is_half_as_fast_from_zen_5_on(
    vendor: str, family: int, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\n")
    monkeypatch.setattr(machine, "PROCESSORS", str(tmp_path / "cpuinfo"))
    assert layers.mkl_is_half_as_fast.__wrapped__() is half


def test_what_needs_no_gradient_gets_none(of_any_size: list[Any]) -> None:
    layer, x = through_onednn(Linear(24, 10)), drawn(20, 24)
    torch.autograd.backward(layer(x).sum())
    assert len(of_any_size) == 1, "the first layer's input has a gradient"
    layer.requires_grad_(False)
    assert not layer(x).requires_grad
    (gradient,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(gradient, layer.weight.sum(0).expand(20, 24))
    with torch.no_grad():
        assert not layer(x).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), x @ layer.weight.t() + layer.bias)


def test_gradients_cannot_be_differentiated_again(of_any_size: list[Any]) -> None:
    x = drawn(5, 24).requires_grad_()
    (gradient,) = torch.autograd.grad(through_onednn(Linear(24, 10))(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradient.sum())


def test_other_devices_dtypes_autocast_and_small_products_are_torchs(of_any_size: list[Any]) -> None:
    layer = through_onednn(Linear(24, 10))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(drawn(5, 24)).dtype == torch.bfloat16
    assert through_onednn(Linear(24, 10).double())(drawn(5, 24).double()).dtype == torch.float64
    assert layer.to("meta")(torch.empty(5, 24, device="meta")).shape == (5, 10)
    assert not of_any_size
    assert not Linear(24, 10).onednn, "one layer has changed how another multiplies"


def test_only_large_products_go_through_onednn() -> None:
    large = layers.LEAST_PRODUCTS // (64 * 64)
    assert layers._onednn_applies(torch.empty(large, 64), torch.empty(64, 64))
    assert not layers._onednn_applies(torch.empty(large - 1, 64), torch.empty(64, 64))


@pytest.mark.parametrize("transform", ["embedding_width", "none"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_multiplies_everything_through_onednn_and_stays_berts(
    tied: bool, transform: str, of_any_size: list[Any]
) -> None:
    sizes: dict[str, Any] = {"depth": 2, "width": 32, "heads": 4, "ffn": 48, "vocabulary": 97, "positions": 24}
    sizes |= {"tied_decoder": tied, "mlm_transform": transform}
    model = MaskedLanguageModel(Architecture.parse(sizes)).eval()
    plain, tokens = {name: value.clone() for name, value in model.state_dict().items()}, torch.arange(48).view(2, 24)
    before = model(tokens)
    multiply_through_onednn(model)
    torch.testing.assert_close(model(tokens), before, atol=1e-5, rtol=0)
    assert len(of_any_size) == 2 * 4 + (1 if transform == "none" else 2)
    assert all(torch.equal(plain[name], value) for name, value in model.state_dict().items())
    first = torch.zeros(2, 1, dtype=torch.long)
    torch.testing.assert_close(model.encoder(tokens, positions_BxK=first), model.encoder(tokens)[:, :1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", [{}, *KINDS.values()], ids=["BERT", *KINDS])
def test_every_kind_learns_through_onednn_what_it_does_without(changes: dict[str, Any], of_any_size: list[Any]) -> None:
    model = randomised(MaskedLanguageModel(small(depth=4, **changes)))
    tokens = torch.randint(5, 97, (3, 24), generator=torch.Generator().manual_seed(1))
    masked, labels = torch.tensor([[0, 5], [23, 2], [7, 9]]), torch.tensor([[9, 8], [7, 6], [5, 4]])

    def gradients() -> tuple[torch.Tensor, ...]:
        loss = model.predicted_loss(model.hidden(tokens, positions_BxK=masked), labels)
        return torch.autograd.grad(loss, list(model.parameters()))

    plain = gradients()
    assert not of_any_size
    multiply_through_onednn(model)
    for one, other in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert of_any_size


def test_parity_with_transformers_holds_through_onednn(of_any_size: list[Any]) -> None:
    shape = {"depth": 2, "width": 128, "heads": 2, "ffn": 512, "vocabulary": 97, "positions": 24}
    ours = MaskedLanguageModel(Architecture.parse(shape)).eval()
    theirs = theirs_of(ours)
    multiply_through_onednn(ours)
    tokens = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(tokens), theirs(input_ids=tokens).logits, atol=1e-5, rtol=0)
    assert of_any_size


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt")


@pytest.mark.slow
def test_a_run_repeats_and_resumes_bit_for_bit_and_its_record_says_onednn(
    corpus: Path, tmp_path: Path, of_any_size: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = config(corpus, recipe={"dropout": 0.1})
    first = trained(tmp_path / "first", wanted, kernels="onednn")
    again = trained(tmp_path / "again", wanted, kernels="onednn")
    with monkeypatch.context() as patch:
        stopped = trained(tmp_path / "stopped", wanted, stop_after(7, patch), kernels="onednn")
    assert stopped.record() is None
    trained(tmp_path / "stopped", wanted, kernels="onednn")
    assert losses(first) == losses(again) == losses(stopped)
    assert np.array_equal(first.validation_losses(), stopped.validation_losses())
    assert first.weights_file.read_bytes() == again.weights_file.read_bytes() == stopped.weights_file.read_bytes()
    record = stopped.record()
    assert record is not None
    assert record.environment is not None
    assert record.environment.kernels == "onednn"

    used = len(of_any_size)
    eager = trained(tmp_path / "eager", wanted, kernels="eager")
    assert len(of_any_size) == used, "a run in the same process goes on with the kernels of the one before"
    assert losses(eager) == pytest.approx(losses(first), rel=1e-4)


@pytest.mark.parametrize(
    ("vendor", "kernels"), [("AuthenticAMD", "onednn"), ("GenuineIntel", "eager"), ("HygonGenuine", "onednn"), (None, "eager")]
)
def test_auto_is_onednn_where_mkl_is_slow(
    vendor: str | None, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors = tmp_path / "cpuinfo"
    processors.write_text("processor\t: 0\n" + (f"vendor_id\t: {vendor}\n" if vendor else "") + "model name\t: A processor\n")
    monkeypatch.setattr(machine, "PROCESSORS", str(processors))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert resolve_kernels(Execution(), "fp32") == kernels
    assert resolve_kernels(Execution(), "bf16") == "eager"
    assert resolve_kernels(Execution(kernels="eager"), "fp32") == "eager"
    assert execution.processor().startswith("A processor")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert resolve_kernels(Execution(), "fp32") == "eager"


def test_onednn_is_refused_where_it_cannot_be(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Execution(kernels="onednn")
    asked.check(config(corpus))
    with pytest.raises(InputError, match=r"kernels: onednn is for fp32 on a CPU; set recipe.precision to fp32"):
        asked.check(config(corpus, recipe={"precision": "bf16"}))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(InputError, match="built without oneDNN"):
        asked.check(config(corpus))
    monkeypatch.setattr(executors, "_find_slots", lambda *_: [Slot("cuda", (0,), 1)])
    with pytest.raises(InputError, match="--kernels onednn: runs on a CPU; add --device cpu, or use auto"):
        executors.make_slots(Resources(kernels="onednn"))


def test_onednn_is_refused_before_a_sweep_in_bf16_starts(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Resources(device="cpu", kernels="onednn")
    assert plan(sweep(corpus), tmp_path, asked).runs == 2
    with pytest.raises(
        InputError, match=r"--kernels onednn: requires fp32, but recipe.precision is bf16; use base.recipe.precision=fp32"
    ):
        plan(sweep(corpus, base={"recipe": {"precision": "bf16"}}), tmp_path, asked)
    as_the_device_has_it = sweep(corpus, base={"recipe": {"precision": "auto"}})
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert plan(as_the_device_has_it, tmp_path, asked).runs == 2
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    with pytest.raises(InputError, match=r"--kernels onednn: requires fp32, but recipe.precision is auto, here bf16"):
        plan(as_the_device_has_it, tmp_path, asked)


def test_compiled_kernels_are_refused_before_a_sweep_starts_where_nothing_can_build_them(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InputError, match=r"--kernels: compiled needs a C compiler and Python's headers"):
        plan(sweep(corpus), tmp_path, Resources(device="cpu", kernels="compiled"))


@pytest.mark.parametrize("outputs", [16, 18])
@pytest.mark.parametrize("biased", [True, False])
def test_an_aligned_product_is_torchs_with_its_gradients(outputs: int, biased: bool) -> None:
    def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return drawn(3, 7, 24).requires_grad_(), drawn(outputs, 24).requires_grad_(), bias.clone() if biased else None

    bias = drawn(outputs).requires_grad_()
    actual, expected = operands(), operands()
    ours, theirs = aligned_product(*actual), torch.nn.functional.linear(*expected)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride(-2) % ALIGNED == 0
    upstream = drawn(3, 7, outputs)
    gradients = [
        torch.autograd.grad(product, [operand for operand in given if operand is not None], upstream)
        for product, given in ((ours, actual), (theirs, expected))
    ]
    torch.testing.assert_close(*gradients)
