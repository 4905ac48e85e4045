"""From a sweep file to the last record: one coordinator, one executor, one mirror."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from study.base.durable_files import require_links
from study.base.errors import InputError, check_all, warn_of
from study.base.machine import garbage_collection_paused
from study.base.quantities import count_text, plural
from study.base.schema import flatten
from study.base.terminal import say
from study.base.text import pasted
from study.config.knobs import TRAINED_RUNS
from study.config.resources import Resources
from study.config.run_config import RunConfig, TokenizerVariant
from study.config.sweep import CellSweep, GoalSweep, SearchSweep, Sweep
from study.counting.memory import AskedPrecision, Device, Precision
from study.data.corpora import MORE_TEXT, is_local, most_tokens, skipped_files_note
from study.data.hub_corpus import PREFIX
from study.data.prepared import PreparedData, check_files, fingerprints, known_overlap_share, prepare, unread_at_first
from study.data.tokenizing import continuing_pieces, load_tokenizer, special_tokens, unused_capitals
from study.executing.executors import make_slots
from study.executing.slots import Slot, sharing_note
from study.planning.cost_estimate import CostEstimate, cost_lines, estimate_cost
from study.planning.memory_check import memory_for, require_memory
from study.planning.plan import Plan
from study.planning.step_times import goal_rate
from study.running.coordinator import preparing
from study.running.display import execute_all
from study.running.run_proposer import RunProposer
from study.store.named_files import refuse_newer
from study.store.ownership import sweep_lock
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import checkpoints_in
from study.tracking.code_state import note_code
from study.tracking.mirror_process import MirrorProcess
from study.tracking.mirror_state import left_in_words

MIRROR_SECONDS = 20.0
"""How long a finished launch waits for the W&B mirror; `study sync` does the rest."""


def folder_of(spec: Sweep, results: Path) -> SweepFolder:
    """Return the folder of a sweep's results."""
    return SweepFolder(results / spec.name)


def plan(spec: Sweep, results: Path, resources: Resources) -> CostEstimate:
    """Return the cost estimate of a sweep on this machine, timed by its records.

    Raises InputError where a run cannot be or execute.
    """
    folder = folder_of(spec, results)
    slots = make_slots(resources)
    estimate = _estimate(_planned(spec, folder, slots), folder, resources, slots)
    return replace(
        estimate,
        unread=next(filter(None, map(unread_at_first, spec.texts)), None),
        passed_over=skipped_files_note(spec.data),
        validation_overlap_share=None if spec.data.corpus.startswith(PREFIX) else known_overlap_share(spec.data),
    )


def _planned(spec: Sweep, folder: SweepFolder, slots: Sequence[Slot]) -> Plan:
    """Return the plan of a sweep on these slots beside the records of its folder that are of its present text."""
    records, problems = folder.read_records()
    refuse_newer(problems)
    warn_of(problems)
    far = spec.data.corpus.startswith(PREFIX)  # a plan asks no hub
    try:
        texts = fingerprints(spec.texts) if not far and (records or folder.siblings() or _names_cells(spec)) else {}
    except InputError:  # which `check_files` raises beside all other problems
        texts = {}
    return Plan(spec, records, texts, folder.runs_folder, goal_rate(slots[0]))


def _names_cells(spec: Sweep) -> bool:
    """Whether runs start from others, whose ids depend on the text."""
    return isinstance(spec, CellSweep) and bool(spec.parents)


@garbage_collection_paused()  # all runs are made that any cell may want, and none of them is garbage
def _estimate(
    planned: Plan, folder: SweepFolder, resources: Resources, slots: list[Slot], *checks: Callable[[], object]
) -> CostEstimate:
    here = resources.on == "local"
    check_all(
        planned.check,
        lambda: check_all(*(partial(check_files, data) for data in planned.spec.texts)),
        lambda: _check_folders(folder),
        lambda: _check_trained_runs(planned, folder),
        lambda: _check_words(planned),
        lambda: _check_token_dropout(planned),
        lambda: _check_enough_text(planned),
        lambda: _check_batches(planned, len(slots[0].indices)),
        lambda: _check_kernels(planned, slots[0], here),
        *([lambda: _check_memory(planned, slots)] if here else []),  # of other machines' memory nothing is known here
        *checks,
    )
    precision = _precision(planned.first_runs[0].recipe.precision, slots[0].device, here)
    return replace(
        estimate_cost(planned, slots, precision, folder.others_records()), earlier_question=_earlier_question(planned, folder)
    )


def _check_folders(folder: SweepFolder) -> None:
    """Raise InputError where runs cannot be written."""
    for each in (folder.path, folder.runs_folder, folder.homes):
        require_links(each, "give another folder with --results")


def _earlier_question(planned: Plan, folder: SweepFolder) -> str | None:
    """Return the folder's last question, where it is another one."""
    with suppress(InputError):  # a launch replaces a file that cannot be read
        launched = folder.launched()
        return None if launched is None or launched.question == planned.spec.question else launched.question
    return None


def _check_trained_runs(
    planned: Plan, folder: SweepFolder, prepared: Mapping[TokenizerVariant, PreparedData] = MappingProxyType({})
) -> None:
    """Raise InputError where a wanted run needs an unusable run."""
    if not {*TRAINED_RUNS} & {*planned.spec.varied, *flatten(planned.spec.base)}:
        return
    from study.training.trained_runs import check_trained_runs

    wanted = _wanted(planned, folder)
    under_way = [run for run in folder.runs() if checkpoints_in(folder.home(run.run_id).checkpoints)]
    started = {run.config().key for run in under_way}
    check_trained_runs(wanted, started, prepared, planned.parents)


def _check_words(planned: Plan) -> None:
    masked = {run.data.tokenizer for run in planned.first_runs if run.recipe.masking.whole_words}
    for tokenizer in masked:
        if tokenizer.kind == "file":
            continuing_pieces(load_tokenizer(tokenizer))


def _wanted(planned: Plan, folder: SweepFolder) -> list[RunConfig]:
    if isinstance(planned.spec, SearchSweep):
        return planned.first_runs if len(planned.current_records) < planned.spec.search.trials else []
    if isinstance(planned.spec, GoalSweep):
        return planned.first_runs
    others = (record for record in folder.others_records() if record.read_text(planned.texts.values()))
    records = {record.config.key: record for record in (*others, *planned.current_records)}
    return [run for cell in planned.cells for run in cell.wanted(records) or ([] if cell.tuned(records) else cell.trials())]


def _notes_on_tokens(planned: Plan, prepared: Mapping[TokenizerVariant, PreparedData]) -> Iterator[str]:
    for requested in planned.spec.texts:
        tokenizer = requested.tokenizer
        data, which = prepared[tokenizer.variant], f"{tokenizer.words}: "
        runs = [run for run in planned.first_runs if run.data.tokenizer == tokenizer]
        lost, stripped = tokenizer.unread(data.facts.lost_share), tokenizer.stripped(data.facts.stripped_share)
        notes = (lost, stripped, unused_capitals(data.tokenizer()), _passes(runs, data))
        yield from (f"{which if len(prepared) > 1 else ''}{note}" for note in notes if note)


def _notes_on_text(planned: Plan, data: PreparedData) -> Iterator[str]:
    requested, facts = planned.spec.data, data.facts
    if requested.dedupe:
        dropped = f"{plural(facts.repeated_paragraphs, 'repeated paragraph')} dropped"
        joined = f"{plural(facts.near_duplicate_documents, 'near-duplicate document')} moved to the split of the original"
        yield f"deduplicated: {dropped}, {joined}"
    if facts.empty_documents or facts.duplicate_documents:
        empty, again = plural(facts.empty_documents, "row"), plural(facts.duplicate_documents, "repeated document")
        yield f"{empty} without text and {again} are skipped"
    notes = (skipped_files_note(requested), requested.overlap(data.validation_overlap_share))
    yield from filter(None, notes)


def _notes_on_tasks(spec: Sweep, prepared: Mapping[TokenizerVariant, PreparedData]) -> Iterator[str]:
    if spec.downstream is not None:
        from study.scoring.scored_examples import lost_notes
        from study.scoring.targets import load_tasks

        tokenizers = {data.tokenizer.words: prepared[data.tokenizer.variant].tokenizer() for data in spec.texts}
        yield from lost_notes(tokenizers, load_tasks(spec.downstream).values())


def another_question(folder: SweepFolder, spec: Sweep) -> str | None:
    """Say that the folder holds a sweep of another question, if so."""
    try:
        before = folder.launched()
    except InputError:  # the launch replaces it
        return None
    if before is None or before.question == spec.question:
        return None
    return f"{folder.path} held another question, {before.question!r}; to keep both, give this sweep a name of its own"


def _check_token_dropout(planned: Plan) -> None:
    """Raise InputError where an encoder leaves out another piece than the tokeniser's mask."""
    knob = "architecture.token_dropout"
    place = planned.spec.place_of(knob) or f"base.{knob}"
    dropping = dict.fromkeys((run.data.tokenizer, run.architecture.token_dropout) for run in planned.first_runs)
    check = (partial(special_tokens(each).check_dropped, piece, place) for each, piece in dropping if piece is not None)
    check_all(lambda: None, *check)


def _check_unique_tokens(planned: Plan, prepared: Mapping[TokenizerVariant, PreparedData]) -> None:
    for run in planned.first_runs:
        prepared[run.data.tokenizer.variant].with_unique_tokens(run.recipe.unique_tokens)


def _check_enough_text(planned: Plan) -> None:
    """Raise InputError where the text certainly has fewer tokens than runs read again and again."""
    data, knob = planned.spec.data, "recipe.unique_tokens"
    asked = max(run.recipe.unique_tokens or 0 for run in planned.first_runs)
    if not asked or not is_local(data.corpus) or (most := most_tokens(data)) is None:
        return
    most = math.ceil(most * data.sequence_length / (data.sequence_length - 1))  # which begin with [CLS]
    if asked > most:
        has = f"is {count_text(asked)}, but the text has at most {count_text(most)} tokens to train on"
        raise InputError.at(planned.spec.place_of(knob) or f"base.{knob}", f"{has}; lower it, leave it out, {MORE_TEXT}")


def _passes(runs: Sequence[RunConfig], data: PreparedData) -> str | None:
    longest = max((run.tokens for run in runs if run.recipe.unique_tokens is None), default=0)
    passes = longest / data.unique_tokens
    if passes <= 1:
        return None
    return f"the text has {count_text(data.unique_tokens)} tokens to train on; the longest run reads them {passes:.1f} times"


def _check_memory(planned: Plan, slots: list[Slot]) -> None:
    require_memory(planned.first_runs, memory_for(slots), slots[0].execution(), planned.parents)


def _check_batches(planned: Plan, devices: int) -> None:
    """Raise InputError where devices cannot share a batch evenly, or one has nothing to validate."""
    if devices == 1:
        return
    if (sequences := planned.spec.data.validation_sequences) < devices:
        message = f"{sequences} are fewer than the {devices} devices of a run; set it to {devices} or more"
        raise InputError.at("data.validation_sequences", message)
    for batch in sorted({run.batch_sequences for run in planned.first_runs}):
        if batch % devices:
            message = f"cannot split a batch of {batch} sequences evenly; change recipe.batch_tokens"
            raise InputError.at(f"--devices {devices}", message)


def _check_kernels(planned: Plan, slot: Slot, here: bool) -> None:
    """Raise InputError where kernels cannot be built here or do not support a precision."""
    from study.training.execution import check_compiler

    if here:
        check_compiler(slot.kernels, slot.device, "--kernels")
    if slot.kernels != "onednn":
        return
    for requested in sorted({run.recipe.precision for run in planned.first_runs}):
        if _precision(requested, "cpu", here) == "bf16":
            precision = requested if requested == "bf16" else f"{requested}, here bf16"
            remedy = "use base.recipe.precision=fp32, or --kernels eager or auto"
            raise InputError.at("--kernels onednn", f"requires fp32, but recipe.precision is {precision}; {remedy}")


def _precision(requested: AskedPrecision, device: Device, here: bool) -> Precision | None:
    """Return the precision of runs, None where another machine decides on `auto`."""
    from study.training.execution import resolve_precision

    return resolve_precision(requested, device) if here or requested != "auto" else None


@contextmanager
def launched(
    spec: Sweep,
    values: dict[str, Any],
    results: Path,
    resources: Resources,
    console: Console,
    track: bool,
    *checks: Callable[[], object],
) -> Iterator[None]:
    """Execute all runs that a sweep still needs, with progress, before the block.

    With `track` they are mirrored to W&B, and so is what the block makes. The sweep's lock is held until the block ends.

    Raises InputError, also of `checks`, before anything is trained, and KeyboardInterrupt when stopped, after the runs have
    saved.
    """
    folder = folder_of(spec, results)
    slots = make_slots(resources)
    planned = _planned(spec, folder, slots)
    estimate = _estimate(planned, folder, resources, slots, *checks)
    for note in (*cost_lines(estimate), *filter(None, [sharing_note(slots), another_question(folder, spec)])):
        say(console, note)
    with sweep_lock(folder.launching):
        with preparing(folder.launching.stop_file):
            prepared = {data.tokenizer.variant: prepare(data, progress=True) for data in spec.texts}
            texts = {variant: data.fingerprint for variant, data in prepared.items()}
            if not planned.texts and _names_cells(spec):
                planned = replace(planned, texts=texts)
            _check_trained_runs(planned, folder, prepared)
            _check_unique_tokens(planned, prepared)
        first = next(iter(prepared.values()))
        for note in (*_notes_on_tokens(planned, prepared), *_notes_on_text(planned, first), *_notes_on_tasks(spec, prepared)):
            say(console, note)
        runs = RunProposer(planned, values, folder, texts, estimate.runs)
        note_code(folder)
        mirror = MirrorProcess(folder)
        if track:
            mirror.start()
        try:
            execute_all(folder, runs, resources, slots, console)
            yield
        finally:
            left = mirror.stop(MIRROR_SECONDS) if track else []
        if left:
            are = "is" if len(left) == 1 else "are"
            say(console, f"{left_in_words(left)} {are} not in W&B yet: study sync {pasted(folder.path)}")
