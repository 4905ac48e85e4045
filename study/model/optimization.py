"""The optimiser of a recipe and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from study.config.recipe import Recipe

CLIP_EPSILON = 1e-6
"""What torch adds to the norm that it divides the limit by."""


def adamw(module: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices and embeddings only, as in BERT: norms and biases do not decay."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (recipe.beta1, recipe.beta2)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.epsilon, fused=True)


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale gradients so that their global norm is at most `limit`; returns the norm from before.

    As torch's clip_grad_norm_, to the bit; but on a CPU, where looking at the norm costs nothing, gradients below the limit
    are not multiplied by one.
    """
    clipped = [parameter for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in clipped if parameter.grad is not None])
    if norm.device.type != "cpu" or not norm + CLIP_EPSILON <= limit:
        torch.nn.utils.clip_grads_with_norm_(clipped, limit, norm)
    return norm


def learning_rate_factor(step: int, steps: int, recipe: Recipe) -> float:
    """The share of the peak learning rate that step `step` (from 0) of `steps` runs at.

    It rises linearly over the warmup (Recipe.warmup_steps), the first step already above zero, and then
    - linear: falls linearly to final_learning_rate_fraction, which the step after the last would reach;
    - cosine: falls there along half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983);
    - wsd: stays at 1 until the last decay_fraction · steps, then falls linearly (Hu et al. 2024, arXiv:2404.06395).
    """
    warmup, decay = recipe.warmup_steps(steps), recipe.decay_steps(steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = max(0.0, (step - (steps - decay)) / decay) if decay else 0.0
    remaining = (1 + math.cos(math.pi * min(progress, 1.0))) / 2 if recipe.schedule == "cosine" else max(0.0, 1 - progress)
    final = recipe.final_learning_rate_fraction
    return final + (1 - final) * remaining


def schedule(optimizer: torch.optim.Optimizer, steps: int, recipe: Recipe) -> LambdaLR:
    """The learning rate as torch's scheduler, stepped once an optimiser step."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps, recipe))
