"""Muon: steps along a matrix's orthogonalised momentum. Letters: N matrices, R rows, C columns, S the shorter side.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adamw import adamw

from study.base.grouping import grouped

MOMENTUM = 0.95
"""The share of the momentum that a step keeps; Nesterov's step applies it once more."""

LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
"""The polynomial aσ + bσ³ + cσ⁵ that an iteration applies to every singular value (Jordan et al. 2024)."""

SQUARE, OBLONG = (1, 1, 1, 1, 1), (3, 2)
"""The grouping of the five iterations into products of S·S matrices: see `orthogonalised`."""

OBLONG_FROM = 1.5
"""The ratio of the sides from which OBLONG takes fewer FLOPs."""

LEAST_NORM = 1e-7
"""The least divisor of a matrix."""


class Muon(torch.optim.Optimizer):
    """Muon for the groups with matrices and AdamW for the others, in one optimiser.

    A group's `matrices` counts the equally sized matrices that each weight stacks: three in a joint product of query, key and
    value, orthogonalised separately, and 0 in AdamW's groups. With momentum M, gradient G and rate η

        M ← μ·M + (1 − μ)·G,    W ← (1 − η·λ)·W − η·√max(1, R/C)·orthogonalised(μ·M + (1 − μ)·G),

    with one momentum as state, not AdamW's two. The factor √max(1, R/C) is Jordan's (torch.optim.Muon's `original`): a step
    changes a layer's output equally at any width. `bf16` is the precision of the orthogonalisation, saved with the state, so
    that a resumed run keeps it.
    """

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], bf16: bool) -> None:
        shared = {"betas": betas, "bf16": bf16, "fused": True, "capturable": False}
        super().__init__(groups, {"matrices": 0, "lr": 1e-3, "eps": 1e-8, "weight_decay": 0.0} | shared)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; call the closure first and return its result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if not group["matrices"]:
                self._step_by_adamw(group)
        matrices = [matrix for group in self.param_groups if group["matrices"] for matrix in self._matrices(group)]
        for of_one_shape in grouped(matrices, lambda matrix: (matrix.weight.shape, matrix.bf16)).values():
            _step_together(of_one_shape)
        return loss

    def _step_by_adamw(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        first, second, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],
            first,
            second,
            [],
            steps,
            fused=True,
            capturable=group["capturable"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _matrices(self, group: dict[str, Any]) -> Iterator[_Matrix]:
        """Update a group's momenta and yield its matrices that have gradients."""
        if not (weights := [weight for weight in group["params"] if weight.grad is not None]):
            return
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        gradients = [weight.grad for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        for parts in zip(weights, gradients, momenta, strict=True):
            each = (part.unflatten(0, (group["matrices"], -1)) for part in parts)
            for weight, gradient, momentum in zip(*each, strict=True):
                yield _Matrix(weight, gradient, momentum, group["lr"], group["weight_decay"], group["bf16"])


class _Matrix(NamedTuple):
    weight: Float[Tensor, "R C"]
    gradient: Float[Tensor, "R C"]
    momentum: Float[Tensor, "R C"]
    rate: float | Tensor
    decay: float
    bf16: bool


def _step_together(matrices: list[_Matrix]) -> None:
    rows, columns = matrices[0].weight.shape
    for step, matrix in zip(orthogonalised(_ahead(matrices)), matrices, strict=True):
        matrix.weight.mul_(1 - matrix.rate * matrix.decay).sub_(
            step.mul_(matrix.rate), alpha=math.sqrt(max(1.0, rows / columns))
        )


def _ahead(matrices: list[_Matrix]) -> Float[Tensor, "N R C"]:
    """Nesterov's μ·M + (1 − μ)·G of matrices of one shape, divided by 1 − μ, in the orthogonalisation's precision."""
    first = matrices[0]
    dtype = torch.bfloat16 if first.bf16 else first.weight.dtype
    ahead_NxRxC = first.weight.new_empty((len(matrices), *first.weight.shape), dtype=dtype)
    for ahead, matrix in zip(ahead_NxRxC, matrices, strict=True):
        torch.add(matrix.gradient, matrix.momentum, alpha=MOMENTUM / (1 - MOMENTUM), out=ahead)
    return ahead_NxRxC


def orthogonalised(x_NxRxC: Float[Tensor, "N R C"]) -> Float[Tensor, "N R C"]:
    """Matrices with the same singular vectors and singular values between 0.7 and 1.2, by five Newton-Schulz iterations.

    From norm 1, an iteration is X ← P·X with P = a + b·G + c·G² and G = X·Xᵀ, or X ← X·P with G = Xᵀ·X if X is tall. P is a
    polynomial in G, so iterations can be grouped on S·S matrices, G ← P·G·P, with X multiplied by the product of their P at the
    end: two groups take 60·S³ FLOPs instead of 90·S³ for matrices four times as long as wide. In bf16 a group of five is
    unstable; groups of three and two are as near to fp64 as five single iterations. Overwrites its argument.
    """
    x_NxRxC.div_(torch.linalg.vector_norm(x_NxRxC, dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM))
    shorter, longer = sorted(x_NxRxC.shape[1:])
    for count in OBLONG if longer >= OBLONG_FROM * shorter else SQUARE:
        x_NxRxC = _iterated(x_NxRxC, count)
    return x_NxRxC


def _iterated(x_NxRxC: Float[Tensor, "N R C"], count: int) -> Float[Tensor, "N R C"]:
    tall = x_NxRxC.shape[1] > x_NxRxC.shape[2]
    gram_NxSxS = x_NxRxC.mT @ x_NxRxC if tall else x_NxRxC @ x_NxRxC.mT
    all_NxSxS = last_NxSxS = _polynomial(gram_NxSxS)
    for _ in range(count - 1):
        gram_NxSxS = last_NxSxS @ gram_NxSxS @ last_NxSxS
        last_NxSxS = _polynomial(gram_NxSxS)
        all_NxSxS = last_NxSxS @ all_NxSxS
    del gram_NxSxS, last_NxSxS
    return x_NxRxC @ all_NxSxS if tall else all_NxSxS @ x_NxRxC


def _polynomial(gram_NxSxS: Float[Tensor, "N S S"]) -> Float[Tensor, "N S S"]:
    """The factor a + b·G + c·G² of an iteration."""
    factor_NxSxS = torch.baddbmm(gram_NxSxS, gram_NxSxS, gram_NxSxS, beta=CUBIC, alpha=QUINTIC)
    factor_NxSxS.diagonal(dim1=1, dim2=2).add_(LINEAR)
    return factor_NxSxS
