"""A sweep's bill and status as tables for a terminal, narrow enough for one of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from study.sweeping.bill import Bill
from study.sweeping.status import SweepStatus
from study.terminal import narrow_table, printable


def bill_table(question: str, bill: Bill) -> Table:
    """One row a cell: its size and what one of its runs costs."""
    table = narrow_table(question, ("shape",), ("parameters", "non-embedding", "tokens", "FLOPs", "seconds", "runs"))
    for row in bill.rows:
        sizes = (f"{row.parameters:,}", f"{row.parameters_non_embedding:,}", f"{row.tokens:,}")
        table.add_row(row.shape, *sizes, f"{row.train_flops:.3g}", f"{row.expected_seconds:,.0f}", f"{row.runs}")
    return table


def bill_summary(bill: Bill) -> str:
    """What all runs cost together, and what the seconds rest on."""
    total = f"{bill.runs} runs, {bill.tokens:,} tokens, {bill.train_flops:.3g} FLOPs"
    time = f"about {bill.expected_seconds / 60:,.1f} minutes on {bill.slots} slots at {bill.basis}"
    units = "Tokens, FLOPs (train_flops: the products that run) and seconds are those of one run."
    return "\n".join([f"{total}: {time}", *_sharing_line(bill), units])


def _sharing_line(bill: Bill) -> Iterator[str]:
    """What it saves that budgets share a trunk."""
    if (sharing := bill.sharing) is not None:
        times = sharing.train_flops / sharing.train_flops_largest
        yield (
            f"One trunk trains for all budgets of a shape, and they branch from it to decay: {sharing.train_flops:.3g} FLOPs "
            f"instead of {sharing.train_flops_alone:.3g}, {times:.2f} times what the largest budgets cost. Seeds share it "
            "where the budgets agree on the best rate. A shorter run's FLOPs and seconds are those of its branch."
        )


def status_table(state: SweepStatus) -> Table:
    """One row a run: where it is, and why fits leave it out where they do."""
    who = f"run by process {state.coordinator['pid']}" if state.coordinator else "nobody runs it now"
    title = f"{state.name}: {state.count('COMPLETED')} of {len(state.runs)} runs completed, {who}"
    table = narrow_table(title, ("run", "shape", "state"), ("rate", "seed", "done", "nats", "tokens/s"))
    table.add_column("note")
    for run in state.runs:
        loss = "" if run.loss_nats is None else f"{run.loss_nats:.4f}"
        speed = "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}"
        numbers = (f"{run.learning_rate:g}", f"{run.seed}", f"{run.tokens / run.target_tokens:.0%}", loss, speed)
        table.add_row(run.run_id, run.shape, run.state, *numbers, Text(printable(run.reason or "")))
    return table
