"""The weights of a completed run."""

from __future__ import annotations

from collections.abc import Mapping

import safetensors.torch
import torch
from torch import Tensor

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.data.cache import sha256_of
from study.model.masked_language_model import MaskedLanguageModel
from study.model.rounding import restored
from study.store.run_folder import RunFolder


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
