"""The weights that a completed run left."""

from __future__ import annotations

import safetensors.torch
from torch import Tensor

from study.errors import InputError
from study.folders import RunFolder


def trained_weights(folder: RunFolder) -> dict[str, Tensor]:
    """The weights of a completed run; raises InputError where the file is not there, or damaged."""
    file = folder.weights_file
    try:
        return safetensors.torch.load_file(file)
    except (FileNotFoundError, safetensors.SafetensorError) as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else "is damaged"
        remedy = "fetch it, or train the run again (move its folder away and launch)"
        raise InputError.at(str(file), f"{what}, and the weights are needed; {remedy}") from None
