"""An optimiser step as a CUDA graph; launching the kernels of small models takes longer than running them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from study.model.optimization import clip_gradients

WARM_UP = 3
"""Training steps that run kernel by kernel before recording, as torch requires."""


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
