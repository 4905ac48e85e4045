"""Benchmark rows: kept in one JSON file per machine, and shown as tables in a terminal and in Markdown."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

from study.base.durable_files import is_there, write_atomically
from study.base.errors import InputError
from study.base.machine import cores
from study.base.quantities import bytes_text, count_text, flops_text, seconds_text
from study.base.text import aligned, table
from study.benching.cases import PEERS_TOKENS
from study.counting.latency import hardware_name
from study.counting.memory import Device

FORMAT = 1
"""Raise it when the JSON format changes; files of other formats are replaced."""

PACKAGES = ("torch", "pytorch-lightning", "transformers", "accelerate", "tokenizers", "numpy", "scaling-study")
"""The packages whose versions are saved."""

Row = Mapping[str, Any]
"""A row of a section, as in JSON."""

Report = Callable[[Row], None]
"""Takes each row as soon as it is measured."""


def measurement(
    what: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None, sentence: str = ""
) -> dict[str, Any]:
    """Return a row of one value, and whether it meets its target, if any."""
    met = None
    if at_most is not None:
        met = value <= at_most
    elif at_least is not None:
        met = value >= at_least
    row = {"what": what, "value": value, "unit": unit, "at_most": at_most, "at_least": at_least, "met": met, "error": None}
    return row | ({"sentence": sentence} if sentence else {})


def failure(what: str, error: str) -> dict[str, Any]:
    """Return the row of a failed measurement."""
    return {"what": what, "value": None, "unit": "", "at_most": None, "at_least": None, "met": None, "error": error}


def environment(device: Device, threads: int) -> dict[str, Any]:
    """Return the hardware, threads and versions of a section's rows."""
    import torch

    from study.training.execution import processor

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "processor": processor(),
        "cores": cores(),
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Results:
    """A machine's results by section; measuring a section again replaces it."""

    def __init__(self, folder: Path, device: Device, threads: int) -> None:
        self.environment = environment(device, threads)
        self.file = folder / f"{hardware_name(self.environment)}.json"
        self.sections: dict[str, Any] = read_sections(self.file) if is_there(self.file) else {}

    def put(self, section: str, rows: Sequence[Row], busy: Sequence[float | None] = ()) -> None:
        """Write a section's rows; `busy` is other programs' share of the processors before and after."""
        self.sections[section] = {"environment": self.environment | {"busy": [*busy]}, "rows": [*rows]}
        content = {"format": FORMAT, "hardware": self.file.stem, "sections": self.sections}
        write_atomically(self.file, json.dumps(content, indent=1).encode() + b"\n")
        write_atomically(self.file.with_suffix(".md"), as_markdown(self.file.stem, self.sections).encode())


def read_sections(file: Path) -> dict[str, Any]:
    """Read the sections of a results file, none if its format differs; raises InputError for other files."""
    try:
        content = json.loads(file.read_bytes())
        sections: dict[str, Any] = content["sections"] if content["format"] == FORMAT else {}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError.at(str(file), f"is not a file of study bench ({error}); move it away") from None
    return sections


TITLES = {
    "train": "Training: tokens a second, and how many times the peers'",
    "presets": "Presets: a step beside one of BERT's recipe",
    "finetune": "Fine-tuning: tokens a second, over transformers' Trainer",
    "sharing": "Small runs that share the device: throughput of all together",
    "kernels": "Between the products: kernels on a GPU",
    "overhead": "What surrounds a step",
    "start": "Starting",
    "coordination": "Coordinating",
    "data": "Data",
    "laws": "Laws",
    "dashboard": "Opening the dashboard",
    "time-to-loss": "Time to the loss of transformers' run_mlm",
}
"""The sections in the order of measurement and display."""

LEGENDS = {
    "train": "ours is the training path of runs, Lightning included; loop is transformers' BertForMaskedLM in a plain loop "
    "with pre-masked batches; trainer is transformers' Trainer with the collator of run_mlm. Medians over rounds in which "
    "the contenders alternate; ratios are taken within a round, with the 95% interval of their median in brackets "
    "(the range, for fewer than six), which another day may leave. Share of matmul: the part of the best rate of a plain "
    "product in this dtype, by torch.mm or, in fp32 on CPUs that are not Intel's, by oneDNN, that the products of our training "
    "use; the last layer, except its keys and values, runs at masked positions only. MFU is the same part of the "
    f"datasheet's dense rate. On a GPU batches of more than {PEERS_TOKENS:,} tokens leave no memory for peers, and beside "
    "peers a step of ours is profiled.",
    "presets": "The training path of runs, at one shape and batch; the variants alternate. The first beside bert adds rotary "
    "positions and the bias by distance, the next Muon, modern twice the masks; modern2 is the later preset. Over BERT's: the "
    "seconds of a step, the median of ratios within rounds with its 95% interval (the range, for fewer than six). MFU is the "
    "share of the datasheet's dense rate.",
    "finetune": "Texts are as long as those of the task in BERT's word pieces, 32 examples a step; tokens count no padding. "
    "Medians over alternating rounds, ratios within a round; both sides use the precision of scores, and neither evaluates, "
    "saves or logs.",
    "sharing": "Runs in processes of their own; relative is the throughput of all over that of one. Under MPS a GPU runs them "
    "at once, each on a part of its multiprocessors, as `study launch` does; without MPS it switches between them.",
    "kernels": "The kernels written for BERT's blocks and the loss, each alone and with empty caches, in bf16 at the sizes of "
    "BERT-Base and 256 x 128 tokens. Of bandwidth: the bytes that must move, as a part of what a large copy moves in the time. "
    "x torch: the time of torch.compile, or of torch's own kernel for attention, over ours, the median of alternating rounds. "
    "Another division of the work is named if it is faster by 2%.",
    "coordination": "A sweep of runs that end at once, with real folders and records and the display of a launch, and a restart"
    " with all of its records, in one process.",
    "dashboard": "`study dashboard` of a folder with one packed sweep, in a headless Chromium on the same machine; medians "
    "over servers that have read nothing yet. The first text and the table count from the opening of their pages, the sort up "
    "to the frame after it.",
    "time-to-loss": "Theirs: BertConfig of the shape, Trainer with its defaults, the collator of run_mlm, the best of three "
    "learning rates or more (while the best is the least or the greatest), one schedule over the tokens. Ours: budgets that "
    "grow by a factor of 1.41, each with its own schedule and at the best of as many rates, up to the first that ends at "
    "their loss, then two between it and the one before, at its rate. Text, tokeniser, dropout, and the validation with its "
    "masks are the same, and so is the batch unless the name says otherwise; by default, theirs trains in fp32 on a CPU, as "
    "Trainer does. Seconds are those of training alone, without the search for rates or our budget: steps times the median "
    "seconds of a step over rounds in which the sides alternate. Faster is the median over rounds, with its 95% interval in "
    "brackets (the range, for fewer than six). Older rows without it have the seconds of the trainings themselves, three "
    "rates, and no budgets between.",
}


def train_cells(row: Row) -> dict[str, str]:
    """Return the cells of a training row."""
    versus, cells = row["versus"], {"model": row["model"] or row["shape"]}
    cells["vocabulary"] = f"{row['vocabulary']:,}"
    cells["dtype"], cells["batch"] = row["dtype"], f"{row['batch']} x {row['sequence_length']}"
    cells["tokens/s"] = count_text(row["ours_tokens_per_second"]) if row["ours_tokens_per_second"] else "failed"
    for name, title in (("loop", "x loop"), ("trainer", "x trainer"), ("trainer_compiled", "x compiled trainer")):
        interval, missing = row.get("versus_interval", {}).get(name), "failed" if name in row["errors"] else "–"
        cells[title] = _with_interval(versus[name], interval, 2) if name in versus else missing
    cells["matmul"] = f"{flops_text(row['matmul_flops_per_second'])}FLOP/s" if row["matmul_flops_per_second"] else "–"
    cells["share of matmul"], cells["MFU"] = _percent(row["share_of_matmul_rate"]), _percent(row["mfu"])
    starts = row["start_seconds"]
    cells["start"] = f"{starts['ours']:.1f} s" if "ours" in starts else "–"
    cells["rounds"] = str(row["rounds"])
    return cells


def sharing_cells(row: Row) -> dict[str, str]:
    """Return the cells of a sharing row."""
    throughput, mps = row["tokens_per_second"], "yes" if row["mps"] else "no"
    return {
        "model": row["model"],
        "batch": f"{row['batch']} x {row['sequence_length']}",
        "runs": str(row["runs"]),
        "MPS": f"{mps}, {row['portion']}% each" if row["portion"] else mps,
        "tokens/s": count_text(throughput) if throughput else "failed",
        "relative": f"{row['relative']:.2f}" if row["relative"] else "–",
    }


def kernel_cells(row: Row) -> dict[str, str]:
    """Return the cells of a kernel row, or of its error."""
    if row["error"] is not None:
        return {"kernel": row["what"], "time": row["error"]}
    timed = {name: seconds for name, seconds in row["divisions"].items() if seconds is not None}
    best = min(timed, key=lambda name: timed[name], default=None)
    faster = best is not None and timed[best] < 0.98 * row["seconds"]
    return {
        "kernel": row["kernel"],
        "time": written(row["seconds"], "s"),
        "of bandwidth": _percent(row["share_of_bandwidth"]),
        "x torch": f"{row['versus']:.2f}",
        "faster": f"{written(timed[best], 's')} with {best}" if faster else "–",
    }


def value_cells(row: Row) -> dict[str, str]:
    """Return the cells of a single value and its target."""
    met = {True: "yes", False: "no", None: "–"}[row["met"]]
    limit = row["at_most"] if row["at_most"] is not None else row["at_least"]
    sign = "≤" if row["at_most"] is not None else "≥"
    return {
        "what": row["what"],
        "value": row["error"] if row["value"] is None else written(row["value"], row["unit"]),
        "target": "–" if limit is None else f"{sign} {written(limit, row['unit'])}",
        "met": met,
    }


def preset_cells(row: Row) -> dict[str, str]:
    """Return the cells of a row of presets, or of its error."""
    if row["error"] is not None:
        return {"model": row["what"], "tokens/s": row["error"]}
    return {
        "model": row["model"],
        "vocabulary": f"{row['vocabulary']:,}",
        "dtype": row["dtype"],
        "batch": f"{row['batch']} x {row['sequence_length']}",
        "variant": row["variant"],
        "tokens/s": count_text(row["tokens_per_second"]),
        "over BERT's": _with_interval(row["over_bert"], row["over_bert_interval"], 2),
        "MFU": _percent(row["mfu"]),
        "rounds": str(row["rounds"]),
    }


def time_to_loss_cells(row: Row) -> dict[str, str]:
    """Return the cells of a time-to-loss row, or of its error."""
    if row["error"] is not None:
        return {"ours": row["what"], "their loss": row["error"]}
    reached = row["our_tokens"] is not None
    above = "diverged" if row["our_loss"] is None else f"{row['our_loss']:.3f}"
    return {
        "ours": row["variant"],
        "shape": row["shape"],
        "vocabulary": f"{row['vocabulary']:,}",
        "their dtype": row.get("their_dtype", row["dtype"]),
        "our dtype": row["dtype"],
        "their batch": f"{row.get('their_batch', row['batch'])} x {row['sequence_length']}",
        "our batch": f"{row['batch']} x {row['sequence_length']}",
        "seed": str(row["seed"]),
        "their loss": f"{row['their_loss']:.3f}",
        "their rate": f"{row['their_rate']:g}",
        "their tokens": count_text(row["tokens"]),
        "their seconds": written(row["their_seconds"], "s"),
        "our rate": f"{row['our_rate']:g}",
        "our tokens": count_text(row["our_tokens"]) if reached else f"not reached ({above})",
        "our seconds": written(row["our_seconds"], "s") if reached else "–",
        "fewer tokens": f"x {row['fewer_tokens']:.1f}" if reached else "–",
        "faster": f"x {_with_interval(row['faster'], row.get('faster_interval'), 1)}" if reached else "–",
    }


CELLS: dict[str, Callable[[Row], dict[str, str]]] = {
    "train": train_cells,
    "presets": preset_cells,
    "sharing": sharing_cells,
    "kernels": kernel_cells,
    "time-to-loss": time_to_loss_cells,
}
"""The cells of each section's rows; the other sections have single values."""


def written(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if unit == "share":
        return f"{value:.2%}" if value < 0.1 else f"{value:.0%}"
    if unit == "s":
        return seconds_text(value)
    return bytes_text(round(value)) if unit == "bytes" else f"{count_text(value)} {unit}"


def cells_of(section: str, rows: Sequence[Row]) -> list[list[str]]:
    """Return a section's table, header first, without empty columns."""
    shown = [CELLS.get(section, value_cells)(row) for row in rows]
    names = [name for name in dict.fromkeys(chain.from_iterable(shown)) if any(cells.get(name, "–") != "–" for cells in shown)]
    return [names, *([cells.get(name, "–") for name in names] for cells in shown)]


def as_text(section: str, rows: Sequence[Row], busy: Sequence[float | None] = ()) -> str:
    """Format a section for a terminal."""
    lines = aligned(cells_of(section, rows), left=1)
    return "\n".join([TITLES[section], *lines, *_sentences(rows), *_errors(rows), *_busy(busy)])


def as_line(section: str, row: Row) -> str:
    """Format one row as a line."""
    cells = CELLS.get(section, value_cells)(row)
    return ", ".join(
        [f"{section}: {next(iter(cells.values()))}", *(f"{k} {v}" for k, v in list(cells.items())[1:] if v != "–")]
    )


def as_markdown(hardware: str, sections: Mapping[str, Any]) -> str:
    """Format a machine's sections in Markdown, each with its environment."""
    parts = [f"# Speed on {hardware}\n"]
    for name in TITLES:
        if name not in sections or not sections[name]["rows"]:
            continue
        rows, measured = sections[name]["rows"], sections[name]["environment"]
        head, *body = cells_of(name, rows)
        versions = ", ".join(f"{package} {number}" for package, number in measured["versions"].items() if number)
        threads = f"{measured['threads']} threads of {measured['cores']} cores"
        machine = f"{measured['device']}, {measured['processor']}, {threads}, {versions}"
        machine = "; ".join([machine, *_busy(measured.get("busy", ()))])
        parts += [f"## {TITLES[name]}\n", *([LEGENDS[name] + "\n"] if name in LEGENDS else []), table(head, body)]
        parts += ["", *(f"- {line}" for line in [*_sentences(rows), *_errors(rows)]), "", f"*{machine}*\n"]
    return "\n".join(parts)


def _busy(before_and_after: Sequence[float | None]) -> list[str]:
    """Describe the load of other programs; older rows lack it."""
    times = zip(before_and_after, ("before", "after"), strict=False)
    shares = [(_percent(share), when) for share, when in times if share is not None]
    words = " and ".join(f"{share} {when}" for share, when in shares)
    return [f"other programs used {words} of the processors' time"] if shares else []


def _sentences(rows: Sequence[Row]) -> list[str]:
    return [row["sentence"] for row in rows if row.get("sentence")]


def _errors(rows: Sequence[Row]) -> list[str]:
    failed = [(row, name, why) for row in rows for name, why in (row.get("errors") or {}).items()]
    return [f"{row['model'] or row['shape']}, {row['dtype']}: {name} failed: {why}" for row, name, why in failed]


def _with_interval(value: float, interval: Sequence[float] | None, digits: int) -> str:
    """Format a ratio with its interval, which older rows lack."""
    low_and_high = "" if interval is None else f" ({interval[0]:.{digits}f}–{interval[1]:.{digits}f})"
    return f"{value:.{digits}f}{low_and_high}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
