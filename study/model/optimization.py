"""The optimiser of a recipe with its learning rate schedule: AdamW and Muon, and a step of either as a CUDA graph.

Letters: N matrices, R rows, C columns, S the shorter side. Source of Muon: Jordan et al. 2024, "Muon: An optimizer for hidden
layers in neural networks" (kellerjordan.github.io/posts/muon).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_update
from torch.optim.lr_scheduler import LambdaLR

from study.base.grouping import grouped
from study.config.recipe import Recipe
from study.counting.memory import Device
from study.model.layers import Linear, multiplies_in_bf16
from study.model.masked_language_model import MaskedLanguageModel
from study.model.parametrization import Scale, scale_of

CLIP_EPSILON = 1e-6
"""torch's epsilon in the divisor of the gradient norm."""

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

WARM_UP = 3
"""Training steps that run kernel by kernel before recording, as torch requires."""


def adamw(module: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices and embeddings, but not on norms and biases, as in BERT."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (recipe.beta1, recipe.beta2)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.epsilon, fused=True)


def optimizer_of(model: MaskedLanguageModel, recipe: Recipe, beside: Iterable[nn.Parameter] = ()) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe, also of matrices `beside` the model; all must be on their device already.

    Muon updates the matrices of the blocks, at `muon_rate_ratio` times the learning rate. AdamW updates tables, norms, biases
    and the head, which do not map hidden features to hidden features, and matrices beside the model.
    """
    muon, others = recipe.optimizer == "muon", nn.ParameterList(beside)
    if not muon and recipe.parametrization == "standard":
        return adamw(nn.ModuleList((model, others)), recipe)
    layers = [layer for each in model.encoders for layer in each.blocks.modules() if isinstance(layer, Linear)] if muon else []
    matrices = {layer.weight: layer.matrices for layer in layers}
    apart = dict(others.named_parameters("beside"))

    def kind(named: tuple[str, nn.Parameter]) -> tuple[int, bool, Scale]:
        name, parameter = named
        if name in apart:
            return 0, True, Scale()
        return matrices.get(parameter, 0), parameter.ndim >= 2, scale_of(model, recipe, name, parameter in matrices)

    groups = [
        {
            "params": [parameter for _, parameter in members],
            "lr": recipe.learning_rate * (recipe.muon_rate_ratio if held else 1) * scale.rate,
            "weight_decay": recipe.weight_decay * scale.decay if decays else 0.0,
            "eps": recipe.epsilon * scale.epsilon,
        }
        | ({"matrices": held} if muon else {})
        for (held, decays, scale), members in grouped([*model.named_parameters(), *apart.items()], kind).items()
    ]
    betas = (recipe.beta1, recipe.beta2)
    if not muon:
        return torch.optim.AdamW(groups, betas=betas, fused=True)
    device: Device = "cuda" if next(model.parameters()).device.type == "cuda" else "cpu"
    return Muon(groups, betas, bf16=multiplies_in_bf16(device))


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale gradients to a global norm of at most `limit`; return the norm before.

    Equal to torch's clip_grad_norm_ to the bit, but on a CPU smaller gradients are not multiplied by one.
    """
    clipped = [parameter for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in clipped if parameter.grad is not None])
    if norm.device.type != "cpu" or not norm + CLIP_EPSILON <= limit:
        torch.nn.utils.clip_grads_with_norm_(clipped, limit, norm)
    return norm


def learning_rate_factor(step: int, steps: int, recipe: Recipe) -> float:
    """Return the share of the peak learning rate at step `step` (from 0) of `steps`.

    It rises linearly over the warmup (Recipe.warmup_steps), from above zero at the first step. Then
    - linear falls linearly to final_learning_rate_fraction, which the step after the last would reach;
    - cosine falls to it along half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983);
    - wsd stays at 1 until the last decay_fraction · steps, then falls linearly (Hu et al. 2024, arXiv:2404.06395).
    """
    warmup, decay = recipe.warmup_steps(steps), recipe.decay_steps(steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = max(0.0, (step - (steps - decay)) / decay) if decay else 0.0
    remaining = (1 + math.cos(math.pi * min(progress, 1.0))) / 2 if recipe.schedule == "cosine" else max(0.0, 1 - progress)
    final = recipe.final_learning_rate_fraction
    return final + (1 - final) * remaining


def schedule(optimizer: torch.optim.Optimizer, steps: int, recipe: Recipe) -> LambdaLR:
    """Return the learning rate as a torch scheduler, one step per optimiser step."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, recipe))


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
        adamw_update(
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
    """Return the factor a + b·G + c·G² of an iteration."""
    factor_NxSxS = torch.baddbmm(gram_NxSxS, gram_NxSxS, gram_NxSxS, beta=CUBIC, alpha=QUINTIC)
    factor_NxSxS.diagonal(dim1=1, dim2=2).add_(LINEAR)
    return factor_NxSxS


class StepGraph:
    """Forward, backward, clipping and optimiser of a step, replayed on each batch with one host call.

    `loss_of` may draw only from `generator` and torch's own. Both may be seeded before each step: a replay draws the same
    numbers as separate kernels. Learning rates become tensors on the device, which a scheduler can change between replays.
    Batches must keep their shape; the graph owns the gradients.

    Source: "Accelerating PyTorch with CUDA Graphs" (PyTorch blog, 2021), whole-network capture.
    """

    def __init__(
        self,
        loss_of: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        gradient_clip_norm: float,
        generator: torch.Generator,
        bf16: bool,
    ) -> None:
        self._loss_of, self._optimizer, self._bf16 = loss_of, optimizer, bf16
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._clip, self._generator, self._taken = gradient_clip_norm, generator, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=generator.device)
            group["capturable"] = True

    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step; returns its loss and the gradient's norm before clipping, overwritten by the next step."""
        if self._taken < WARM_UP:
            self._taken += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                loss, norm = self._step(batch)
            torch.cuda.current_stream().wait_stream(self._stream)
            return loss, norm
        if self._graph is None:
            self._record(batch)
        assert self._graph is not None
        self._batch.copy_(batch)
        self._graph.replay()
        return self._loss, self._norm

    def _record(self, batch: Tensor) -> None:
        self._batch = batch.clone()
        self._optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(self._generator)
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._loss, self._norm = self._step(self._batch)

    def _step(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, self._bf16, cache_enabled=False):
            loss = self._loss_of(batch)
        with torch.autocast("cuda", enabled=False):
            loss.backward()  # type: ignore[no-untyped-call]
            norm = clip_gradients(self._parameters, self._clip)
            self._optimizer.step()
        return loss.detach(), norm
