"""Shapes from rules: heads and ffn from the width, and the width that meets a parameter count at a given depth."""

from __future__ import annotations

from dataclasses import dataclass

from study.architecture import Architecture
from study.counting import parameters


@dataclass(frozen=True)
class ShapeRules:
    """How a width fixes the rest of a shape: heads of about `head_width`, an ffn of `ffn_ratio` widths, widths in steps."""

    head_width: int = 64
    ffn_ratio: float = 4.0
    width_multiple: int = 8

    def heads(self, width: int) -> int:
        """The number of heads that divides `width` and brings the head width nearest to `head_width`, the wider on a tie."""
        divisors = (heads for heads in range(1, width + 1) if width % heads == 0)
        return min(divisors, key=lambda heads: (abs(width / heads - self.head_width), heads))

    def ffn(self, width: int) -> int:
        """The inner size, ffn_ratio · width, to the nearest whole number."""
        return max(1, round(self.ffn_ratio * width))

    def at_parameters(self, target: float, depth: int, template: Architecture) -> Architecture:
        """The architecture of `depth` layers whose `parameters_non_embedding` come nearest to `target`.

        Widths are multiples of `width_multiple`; all but the shape is taken from `template`. The count grows with the width,
        so a bisection finds the two widths round the target and the nearer one is returned.
        """

        def at(multiples: int) -> Architecture:
            width = multiples * self.width_multiple
            sizes = {"depth": depth, "width": width, "heads": self.heads(width), "ffn": self.ffn(width)}
            return template.model_copy(update=sizes)

        below, above = 1, 2
        while parameters(at(above)).parameters_non_embedding < target:
            below, above = above, 2 * above
        while above - below > 1:
            middle = (below + above) // 2
            if parameters(at(middle)).parameters_non_embedding < target:
                below = middle
            else:
                above = middle
        return min((at(below), at(above)), key=lambda a: abs(parameters(a).parameters_non_embedding - target))
