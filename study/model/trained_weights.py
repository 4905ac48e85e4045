"""The weights that a completed run left."""

from __future__ import annotations

import safetensors.torch
from torch import Tensor

from study.base.errors import InputError
from study.data.cache import sha256_of
from study.store.run_folder import RunFolder


def trained_weights(folder: RunFolder) -> dict[str, Tensor]:
    """The weights of a completed run; raises InputError where the file is not there, or is not the one that its record names.

    Safetensors itself notices no flipped byte. Records of before they named the file's SHA-256 are believed.
    """
    file, record = folder.weights_file, folder.record()
    try:
        if record is not None and record.weights_sha256 not in (None, sha256_of(file)):
            raise safetensors.SafetensorError("other bytes than were written")
        return safetensors.torch.load_file(file)
    except (FileNotFoundError, safetensors.SafetensorError) as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else "is damaged"
        remedy = "fetch it, or train the run again (move its folder away and launch)"
        raise InputError.at(str(file), f"{what}, and the weights are needed; {remedy}") from None
