"""Weights as files hold them, rounded to bf16 or int8, the weights of a completed run, and products of int8.

Letters: H inputs, F outputs. Rounding follows torch's dynamic quantisation: int8 has a scale for each row of a matrix or table,
max|w| ÷ 127 (symmetric), and inputs of a product are rounded as it runs, to 7 bits with one scale and zero for the whole
tensor, so that processors without VNNI sum without overflow (Wu et al. 2020, arXiv:2004.09602, sections 3 and 4).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor, nn

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.counting.memory import WeightFormat
from study.data.cache import sha256_of
from study.model.layers import Products
from study.model.masked_language_model import MaskedLanguageModel
from study.store.run_folder import RunFolder

LARGEST = 127
"""The largest magnitude of an int8 weight; −128 is unused."""

SCALES = ".scales"
"""The suffix of a matrix's name that names the scales of its rows."""

ON_A_CPU = "runs on a CPU alone; give --device cpu"
"""Why a GPU refuses products of int8."""


def stored(weights: Mapping[str, Tensor], form: WeightFormat) -> dict[str, Tensor]:
    """Return the tensors of a weights file: fp32 as they are, all bf16, or matrices and tables in int8 with their scales."""
    if form == "fp32":
        return dict(weights)
    if form == "bf16":
        return {name: tensor.bfloat16() for name, tensor in weights.items()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if _is_matrix(name, tensor):
            tensors[name], tensors[name + SCALES] = rounded_rows(tensor)
        else:
            tensors[name] = tensor
    return tensors


def restored(tensors: Mapping[str, Tensor], form: WeightFormat) -> dict[str, Tensor]:
    """Return the weights in fp32 of a file's tensors; a matrix whose scales are missing is left out."""
    if form == "fp32":
        return dict(tensors)
    if form == "bf16":
        return {name: tensor.float() for name, tensor in tensors.items()}
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int8 and not name.endswith(SCALES):
            weights[name] = tensor
        elif (scales_F := tensors.get(name + SCALES)) is not None:
            weights[name] = tensor * scales_F[:, None]
    return weights


def rounded(weights: Mapping[str, Tensor], form: WeightFormat) -> dict[str, Tensor]:
    """Return the weights in fp32, with the values that a format can hold."""
    return restored(stored(weights, form), form)


def rounded_rows(weight_FxH: Float[Tensor, "F H"]) -> tuple[Tensor, Float[Tensor, " F"]]:
    """Return a matrix in int8, and the scales of its rows; a row of zeros has scale 1."""
    scales_F = weight_FxH.detach().abs().amax(1) / LARGEST
    scales_F = torch.where(scales_F == 0, 1.0, scales_F)
    return (weight_FxH.detach() / scales_F[:, None]).round().to(torch.int8), scales_F


def _is_matrix(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is the weight of a linear layer or an embedding table."""
    return name.endswith(".weight") and tensor.dim() == 2


def multiply_in_int8(module: nn.Module) -> None:
    """Let a module multiply in int8, for inference on a CPU with the weights that it has now."""
    for each in module.modules():
        if isinstance(each, Products):
            each.rounded = Int8Products()


def multiply_in_fp32(module: nn.Module) -> None:
    """Undo `multiply_in_int8`."""
    for each in module.modules():
        if isinstance(each, Products):
            each.rounded = None


class Int8Products:
    """x·Wᵀ + b in int8, by torch's fused kernel; each weight is rounded and packed when it is first used.

    torch marks tensors of quantised types as deprecated. Their successor, torchao, multiplies int8 on a CPU 30 to 40 times as
    slowly unless it is compiled (torch 2.13, torchao 0.18). Raises InputError on a GPU.
    """

    def __init__(self) -> None:
        self._packed: dict[tuple[int, torch.Size], Any] = {}

    def __call__(self, x: Tensor, weight_FxH: Tensor, bias_F: Tensor | None) -> Tensor:
        """Return the product in fp32."""
        if x.device.type != "cpu":
            raise InputError.at("device", f"an encoder in int8 {ON_A_CPU}")
        key = weight_FxH.data_ptr(), weight_FxH.shape
        if key not in self._packed:
            self._packed[key] = _packed(weight_FxH, bias_F)
        product: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self._packed[key], True)
        return product


def _packed(weight_FxH: Tensor, bias_F: Tensor | None) -> Any:
    whole, scales_F = rounded_rows(weight_FxH.float())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor")
        zeros_F = torch.zeros(len(whole), dtype=torch.long)
        quantised = torch._make_per_channel_quantized_tensor(whole, scales_F.double(), zeros_F, 0)
    bias = None if bias_F is None else bias_F.detach().float()
    return torch.ops.quantized.linear_prepack(quantised, bias)


def trained_weights(folder: RunFolder) -> dict[str, Tensor]:
    """Load the weights of a completed run, in fp32; those stored in bf16 or int8 have the values that these hold.

    Raises InputError if the file is missing, differs from the record's SHA-256 (safetensors misses flipped bits; older records
    have none), does not match the run's architecture, or holds values that are whole numbers, of 8 bits or not finite.
    """
    file, record, config = folder.weights_file, folder.record(), folder.config()
    try:
        if record is not None and record.weights_sha256 not in (None, sha256_of(file)):
            raise safetensors.SafetensorError("its bytes changed")
        weights = restored(safetensors.torch.load_file(file), config.recipe.weights)
    except (FileNotFoundError, safetensors.SafetensorError) as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else "is damaged"
        raise InputError.at(str(file), f"{what}, and the weights are needed; {folder.weights_remedy()}") from None
    if problem := _unlike(weights, config.architecture):
        raise InputError.at(str(file), f"{problem}, unlike the run's config.yaml; fetch the file that the run wrote")
    return weights


def _unlike(weights: Mapping[str, Tensor], architecture: Architecture) -> str | None:
    with torch.device("meta"):
        sizes = {name: tuple(tensor.shape) for name, tensor in MaskedLanguageModel(architecture).state_dict().items()}
    for name in sizes.keys() | weights.keys():
        if name not in weights:
            return f"lacks {name}"
        if name not in sizes:
            return f"holds {name}"
        if tuple(weights[name].shape) != sizes[name]:
            return f"holds {name} of {tuple(weights[name].shape)} instead of {sizes[name]}"
        if (why := why_unusable(weights[name])) is not None:
            return f"holds {name} {why}"
    return None


def why_unusable(weight: Tensor) -> str | None:
    """Why a tensor cannot be a weight, None if it can."""
    if not weight.is_floating_point() or weight.dtype.itemsize < torch.half.itemsize:
        return f"in {str(weight.dtype).removeprefix('torch.')}, not as floating-point numbers of 16 bits or more"
    return None if weight.isfinite().all() else "with values that are not finite"
