"""The architecture of an encoder: its shape and all else that changes its parameters, with the invariants between them."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from study.schema import Count, Index, Strict


class Architecture(Strict):
    """A BERT-style encoder with a masked-language-model head: depth L, width H, heads A, ffn F, and the rest.

    `ffn` is the inner size that is really built. `norm` says where LayerNorm stands: `post`, after each residual sum, as in
    BERT (Devlin et al. 2019, arXiv:1810.04805), or `pre`, before each sublayer with one more after the last (Xiong et al.
    2020, arXiv:2002.04745). With `tied_decoder` the output projection is the token embedding.

    Raises InputError (through `parse`) or ValidationError where heads do not divide the width or a size is below one.
    """

    depth: Count
    width: Count
    heads: Count
    ffn: Count
    vocabulary: Count
    positions: Count = 512
    segments: Index = 2
    norm: Literal["post", "pre"] = "post"
    tied_decoder: bool = True

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            near = min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: abs(n - heads))
            raise ValueError(f"heads do not divide width {width}; {near} would")
        return heads

    @property
    def head_width(self) -> int:
        """Width of one attention head, H/A."""
        return self.width // self.heads

    @property
    def shape_name(self) -> str:
        """The four sizes of the shape as one short name, such as L2-H128-A2-F512."""
        return f"L{self.depth}-H{self.width}-A{self.heads}-F{self.ffn}"
