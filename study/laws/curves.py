"""What laws that are no sum of terms share: second derivatives given row by row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from study.laws.law import Derivatives, Floats, Surface

Pairs = Mapping[tuple[int, int], Floats]
"""Second derivatives, each B × n, by pair of parameters, the first not later."""


class CurvedSurface(Surface):
    """A law that gives its second derivatives row by row."""

    @abstractmethod
    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        """Values (B × n), gradients (B × n × p), and second derivatives, those that are not 0 everywhere."""

    def value(self, theta: Floats) -> Floats:
        """The law's values, B × n."""
        return self.expand(theta)[0]

    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""
        value, jacobian, seconds = self.expand(theta)

        def curvature(weights: Floats) -> Floats:
            summed = np.zeros((len(theta), theta.shape[1], theta.shape[1]))
            for (one, other), second in seconds.items():
                summed[:, one, other] = summed[:, other, one] = (weights * second).sum(axis=1)
            return summed

        return Derivatives(value, jacobian, curvature)
