"""The path of a sweep to its goal, as its launch leaves it for the report: what each look found, and which runs were chosen."""

from __future__ import annotations

from typing import Literal

from study.base.schema import Count, Index, Positive, Strict

GoalState = Literal["open", "met", "spent", "unreachable"]
"""Whether runs are still to come, the goal is met, the compute is spent, or the goal cannot be met with it."""


class GoalLook(Strict):
    """What the first `runs` runs say, for `spent_flops`: half the 95% interval, None while it is infinite or unknown."""

    runs: Index
    spent_flops: float
    half_width: float | None = None


class ChosenRun(Strict):
    """A chosen run in the order of its end; one that is not `used` failed, or reads no word order."""

    run_id: str
    shape: str
    parameters_non_embedding: Count
    tokens: Count
    seed: Index
    spent_flops: float
    used: bool


class GoalPath(Strict):
    """The way to a goal: its looks and runs, where it stands, and why, in a sentence.

    `wanted` is the half-width at which the goal is met, in the words `of`, of the budget `spend_flops`. `target_parameters` and
    `target_tokens` are where the loss is wanted, if anywhere.
    """

    of: str
    wanted: Positive
    spend_flops: Positive
    state: GoalState
    sentence: str
    looks: tuple[GoalLook, ...] = ()
    runs: tuple[ChosenRun, ...] = ()
    target_parameters: float | None = None
    target_tokens: float | None = None
