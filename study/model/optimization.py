"""The optimiser of a recipe and its learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from study.base.grouping import grouped
from study.config.recipe import Recipe
from study.counting.memory import Device
from study.model.autocast import multiplies_in_bf16
from study.model.linear import Linear
from study.model.masked_language_model import MaskedLanguageModel
from study.model.muon import Muon
from study.model.parametrization import Scale, scale_of

CLIP_EPSILON = 1e-6
"""torch's epsilon in the divisor of the gradient norm."""


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
    """The optimiser of a recipe, also of matrices `beside` the model; all must be on their device already.

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
    """The share of the peak learning rate at step `step` (from 0) of `steps`.

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
    """The learning rate as a torch scheduler, one step per optimiser step."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, recipe))
