"""The answer says what the ledger says, in every state a sweep can be in."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from study.base.errors import InputError
from study.base.text import escape
from study.config.run_config import RunConfig
from study.evidence.comparisons import compare
from study.evidence.evidence import Evidence, gather, save_fits
from study.evidence.families import families_of
from study.evidence.gains import Cut
from study.evidence.sweep_laws import SweepLaws
from study.laws.estimation import Settings
from study.report import answer_tables
from study.report.answer import Answer, report
from study.report.figures import FIGURES
from study.report.findings import law_findings, loss_findings
from study.report.open_questions import undecided
from study.report.verdicts import verdict_of
from study.store.records import State, cell_of
from study.store.score_records import scores_of, write_scores
from study.store.sweep_folder import SweepFolder
from tests.synthetic import (
    SWEEP,
    Law,
    add_run,
    depth_or_width,
    environment,
    in_setting,
    run_config,
    sweep_folder,
    with_facts,
)
from tests.synthetic_scores import TASKS, add_scores

SMALL = ((1, 128), (2, 92))


def checked(folder: SweepFolder, include_unbracketed: bool = False) -> Answer:
    """The report, after the checks that hold in every state."""
    answer = report(folder, include_unbracketed)
    assert folder.answer_file.read_text() == answer.to_markdown()
    assert len(answer.headline.splitlines()) == 1, "the headline is one sentence"
    assert f"**{escape(answer.headline)}**" in answer.to_markdown()
    json.dumps(answer.to_dict(), allow_nan=False)
    assert "nan" not in answer.to_markdown().lower().replace("nano", "").replace("became nan", "")
    for name in answer.figures:
        assert (folder.figures / f"{name}.svg").stat().st_size > 1000
        (what, caption) = re.findall(rf"!\[(.*)\]\(figures/{name}\.svg\)\n\n\*(.*)\*\n", answer.to_markdown())[0]
        assert what == FIGURES[name][1]
        assert caption == escape(answer.figures[name]) != what, "what it shows, not what it draws"
        assert answer.figures[name].split()[0] in (folder.figures / f"{name}.svg").read_text()
    assert "doubling depth +85.1M" in " ".join(answer.findings["parameters"])
    return answer


def undrawn(folder: SweepFolder) -> Answer:
    """The answer of a sweep without its figures, which take most of a report's time."""
    folder.write_ledger()
    return Answer(gather(folder), {})


def test_decided(tmp_path: Path) -> None:
    answer = checked(depth_or_width(tmp_path / "depth_or_width"))
    assert len(answer.figures) == 8
    assert answer.headline.startswith("Width lowers loss more at equal non-embedding parameters: L1-H128-A2-F512 is ")
    assert "Width lowers loss more in every pair" in answer.findings["loss"][0]
    assert answer.to_dict()["runs"] == {"started": 60, "ended": 60, "excluded": 0}
    text = answer.to_markdown()
    order = (
        "Width lowers",
        "How sure",
        "](figures/paired_differences.svg)",
        "change this",
        "All findings",
        "Cells",
        "rebuilds",
    )
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "width +278.8M (the FFN with it), ffn +56.7M" in " ".join(answer.findings["parameters"])
    assert "278.8M" not in text, "the question does not ask about parameters"


@pytest.mark.slow
def test_laws_are_reported_with_status_interval_and_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.evidence.sweep_laws.DEFAULT_SETTINGS", Settings(bootstrap=100))
    folder = depth_or_width(tmp_path / "s", budgets=(1e6, 2e6, 4e6), seeds=1)
    asked = folder.sweep_file.read_text().replace(SWEEP["question"], "How do sizes and tokens set the loss?")
    folder.sweep_file.write_text(asked)
    answer = undrawn(folder)
    save_fits(answer.evidence)
    as_dict = answer.to_dict()
    (first, *_) = as_dict["findings"]["laws"]
    assert first.startswith("chinchilla, E + A·N^−alpha + B·D^−beta, over parameters, tokens: ")
    assert "95% interval" in first
    assert "held-out error" in first
    assert "interval covered" in first
    assert as_dict["laws"][0]["status"] != "converged"
    assert answer.headline.startswith("Chinchilla, E + A·N^−alpha + B·D^−beta, forecasts the ")
    assert " rows beyond the budgets fitted with a mean error of " in answer.headline
    saved = json.loads((folder.fits / "chinchilla.json").read_text())
    assert saved["status"] == as_dict["laws"][0]["status"]
    assert {"estimates", "intervals", "forecast", "options"} <= saved.keys()


@pytest.mark.slow
def test_two_budgets_determine_no_exponent_of_the_tokens(tmp_path: Path) -> None:
    """Any beta serves where B and E may follow it."""
    answer = undrawn(depth_or_width(tmp_path / "s", budgets=(1e6, 4e6)))
    as_dict = answer.to_dict()
    (first, *_) = as_dict["findings"]["laws"]
    why = "has 2 values in 24 rows, and chinchilla needs 3: with fewer, any floor fits with some exponent"
    assert first == f"No fit of chinchilla: tokens: {why}."
    assert "chinchilla" not in [law["law"] for law in as_dict["laws"]]
    assert "| chinchilla |" not in answer.to_markdown(), "nor does the table show any"


@pytest.mark.slow
def test_too_few_cells_for_a_law_say_so(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=((1, 64), (1, 128)))
    (folder.path / "fits").mkdir()
    (folder.fits / "chinchilla.json").write_text("{}")
    answer = checked(folder)
    assert answer.to_dict()["findings"]["laws"] == [
        "No fit of power-floor: its 3 parameters need 4 or more different points, got 2 in 4 rows; left out: 6 rows "
        "(not at the best learning rate of its cell)."
    ]
    assert not (folder.fits / "chinchilla.json").exists()


@pytest.mark.slow
def test_shapes_of_one_size_determine_no_law_of_size(tmp_path: Path) -> None:
    """Their parameters differ by the embeddings, which follow the width: a law over these would be one of the shape."""
    shapes = ((1, 128), (2, 92), (3, 76), (4, 64))
    one = depth_or_width(tmp_path / "one", budgets=(1e6,), shapes=shapes)
    reason = "No law is fitted: the usable runs are of one size, and no shape has two budgets."
    assert undrawn(one).to_dict()["findings"]["laws"] == [reason]
    odd = (*shapes, (6, 52))  # an even number of shapes has no one median, so that the law's optimum would be flat
    (law,) = undrawn(depth_or_width(tmp_path / "tokens", budgets=(1e6, 2e6, 4e6, 8e6), shapes=odd)).to_dict()["laws"]
    assert law["law"] == "tokens-floor"


@pytest.mark.slow
def test_runs_that_were_validated_on_different_masks_share_no_law(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width in (32, 48, 64, 96, 128):
        for rate in (0.15, 0.4):
            plain = run_config(1, width)
            add_run(folder, plain.model_copy(update={"masking": plain.masking.model_copy(update={"rate": rate})}))
    (finding,) = checked(folder).to_dict()["findings"]["laws"]
    remedy = 'fit some with study fit of this folder and --where "masking.rate == …"'
    assert finding == f"No law is fitted: the losses of runs that differ in masking.rate are not comparable; {remedy}."
    moved = SweepFolder(folder.path.rename(tmp_path / "moved"))
    assert undrawn(moved).findings["laws"] == [finding], "an answer is the same wherever its folder lies"


@pytest.mark.slow
def test_depth_can_win(tmp_path: Path) -> None:
    answer = undrawn(depth_or_width(tmp_path / "s", Law(depth_effect=-0.08), budgets=(1e6,), shapes=SMALL))
    assert answer.headline.startswith("Depth lowers loss more at equal non-embedding parameters: L2-H92-A2-F368 is 0.")
    assert answer.headline.endswith("1M tokens), a significant difference.")


def test_captions_and_all_texts_of_figures_have_knobs_in_plain_words(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["post", "pre"]}})
    for norm in ("post", "pre"):
        for seed in (0, 1):
            add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm))
    captions = report(folder, include_unbracketed=True, page=tmp_path / "page.html").figures
    assert "-norm" in captions["loss_against_parameters"]
    assert "=" not in " ".join(captions.values())
    shown = {name: (folder.figures / f"{name}.svg").read_text() for name in captions}
    worded = {name for name, drawing in shown.items() if "post-norm" in drawing and "pre-norm" in drawing}
    assert worded >= {"loss_against_parameters", "loss_against_flops", "loss_curves", "paired_differences"}
    assert not [name for name, drawing in shown.items() if "norm=p" in drawing]
    points = re.findall("<title>(.*?)</title>", (tmp_path / "page.html").read_text(), re.DOTALL)
    assert any("pre-norm" in words for words in points)
    assert not any("norm=p" in words for words in points)


def test_undecided_says_what_would_decide(tmp_path: Path) -> None:
    answer = undrawn(depth_or_width(tmp_path / "s", Law(depth_effect=0.0), budgets=(1e6,), shapes=SMALL))
    assert "no difference in 1 pair is significant" in answer.headline
    assert "seeds" in answer.verdict.change
    assert any("L2-H92" in line for line in answer.to_dict()["findings"]["undecided"])


@pytest.mark.parametrize("largest", [(1, 256), (4, 128)])
def test_rates_transferred_to_depths_that_searched_none_are_said_to_be_assumed(
    largest: tuple[int, int], tmp_path: Path
) -> None:
    """The smallest cell is of one layer; without the largest of four nothing says that the rate holds there."""
    tune = {"recipe.learning_rate": {"low": 1e-3, "high": 8e-3, "trials": 4, "at": "smallest"}}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": tune})
    law = Law(best_rate=2e-3, depth_effect=0.3)
    for depth, width in ((1, 48), (1, 128), (2, 92), (4, 64), largest):
        for rate in (1e-3, 2e-3, 4e-3) if (depth, width) in ((1, 48), largest) else (2e-3,):
            add_run(folder, run_config(depth, width, rate), law)
        for seed in (1, 2):
            add_run(folder, run_config(depth, width, 2e-3, seed), law)
    folder.write_ledger()
    evidence = gather(folder)
    assert [pair.status for pair in evidence.comparisons.pairs] == ["decided"] * 3
    lines = [line for line in undecided(evidence) if line.startswith("Whether rates hold")]
    certainty = verdict_of(evidence).certainty
    if largest[0] == 1:
        assert lines == [
            "Whether rates hold to depth 4: they were searched at depth 1, and 3 of 3 decided pairs have a cell beyond that at "
            "a transferred rate; searching a cell there would tell."
        ]
        assert certainty.endswith(" Rates beyond depth 1 were not searched.")
    else:
        assert lines == []
        assert "were not searched" not in certainty


@pytest.mark.parametrize("asked", [["cola", "tasks/reviews.yaml"], {"tasks": ["cola", "tasks/reviews.yaml"], "seeds": 1}])
@pytest.mark.parametrize("diverged", [False, True])
def test_tasks_that_nothing_was_scored_on_are_reported(asked: object, diverged: bool, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"downstream": asked})
    add_run(folder, run_config(1, 64), state="DIVERGED" if diverged else "COMPLETED")
    folder.write_ledger()
    (line,) = (line for line in undecided(gather(folder)) if "cola" in line)
    why = "no run can be used, so none was scored" if diverged else "no run was scored; study score does it"
    assert line == f"What the encoders score on cola, reviews: {why}."


def test_runs_that_were_not_scored_on_a_task_are_reported_beside_those_that_were(tmp_path: Path) -> None:
    sweep = SWEEP | {"downstream": ["sst2", "cola", "tasks/reviews.yaml", "tasks/mails.yaml"]}
    folder = sweep_folder(tmp_path / "s", sweep | {"tune": {}})
    for width, seed in ((64, 0), (64, 1), (128, 0)):
        add_run(folder, run_config(1, width, seed=seed))
    folder.write_ledger()
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "cola")})
    assert not [line for line in undecided(gather(folder)) if "sst2" in line]
    unscored = next(run for run in folder.runs() if run.config() == run_config(1, 64, seed=1))
    for score in scores_of(unscored):
        if score.config.task == "cola":
            (unscored.scores / score.score_id / "record.json").unlink()
    write_scores(folder)
    assert [line for line in undecided(gather(folder)) if "study score" in line] == [
        "What L1-H64-A2-F256 at 1M tokens score on cola: 1 of 3 runs was not scored; study score does it or says why not.",
        "What the encoders score on reviews, mails: no run was scored; study score does it.",
    ]


@pytest.mark.slow
def test_runs_in_different_precision_are_reported(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=SMALL)
    runs = list(folder.runs())

    def lines_on_precision(bf16: int, asked: str = "auto", **first: Any) -> list[str]:
        for number, run in enumerate(runs):
            record = json.loads(run.record_file.read_bytes()) | (first if number == 0 else {})
            record["config"]["recipe"]["precision"] = asked
            record["environment"] = environment(precision="bf16" if number < bf16 else "fp32").model_dump()
            run.record_file.write_text(json.dumps(record))
        folder.write_ledger()
        return [line for line in undecided(gather(folder)) if "precision" in line]

    (line,) = lines_on_precision(bf16=3)
    assert f"auto meant 3 runs in bf16 and {len(runs) - 3} runs in fp32" in line
    assert lines_on_precision(bf16=0) == lines_on_precision(bf16=len(runs)) == []
    assert lines_on_precision(bf16=3, asked="fp32") == [], "auto chose nothing"
    assert lines_on_precision(bf16=1)
    assert lines_on_precision(bf16=1, state="DIVERGED") == [], "a run that is left out is not in use"


def with_gains(path: Path, gains: dict[int, float | None], **sweep: Any) -> SweepFolder:
    """SMALL with three seeds, whose runs of each depth have an order gain."""
    folder = sweep_folder(path, SWEEP | {"tune": {}} | sweep)
    for (depth, width), seed in product(SMALL, range(3)):
        add_run(folder, run_config(depth, width, seed=seed), order_gain=gains[depth])
    return folder


@pytest.mark.slow
def test_shapes_of_which_one_reads_no_order_have_no_verdict_and_it_is_said_what_may_help(tmp_path: Path) -> None:
    answer = checked(with_gains(tmp_path / "s", {1: 1.0, 2: 0.0003}), include_unbracketed=True)
    assert answer.headline == (
        "No verdict on shapes at equal non-embedding parameters: one encoder of each pair reads no word order, so that losses "
        "follow the token table; more tokens, another learning rate, rotary positions, a learned bias by distance, more masks "
        "or Muon may help."
    )
    assert "more masks (base.recipe.masking.rate: 0.3) or Muon (base.recipe.optimizer: muon) may" in answer.verdict.change
    assert answer.verdict.change in answer.findings["loss"][0]
    assert "lower" not in " ".join(answer.findings["loss"])
    (open_line,) = (line for line in answer.findings["undecided"] if "word order" in line)
    assert "read word order, 1 of 2 cells: L2-H92-A2-F368 at 1M tokens (+0.0003 ± 0.0100); until then" in open_line
    text = answer.to_markdown()
    assert "| reads no order |" in text
    assert "+0.0003 ± 0.0100 (reads none)" in text
    assert "+1.0000 ± 0.0100 |" in text
    assert answer.to_dict()["comparisons"]["pairs"][0]["status"] == "reads_no_order"
    assert {cell["shape"][:2]: cell["reads_order"] for cell in answer.to_dict()["cells"]} == {"L1": True, "L2": False}
    assert "paired_differences" in answer.figures, "the losses are shown all the same"


@pytest.mark.parametrize(
    ("knob", "values", "left"),
    [
        ("recipe.optimizer", ["adamw", "muon"], ["position_encoding", "distance_bias", "masking"]),
        ("preset", ["bert", "modern"], []),
    ],
)
def test_what_a_sweep_compares_is_no_remedy(tmp_path: Path, knob: str, values: list[str], left: list[str]) -> None:
    """The file cannot have in its base what it varies."""
    folder = with_gains(tmp_path / "s", {1: 0.0003, 2: 0.0003}, vary={knob: values})
    folder.write_ledger()
    (line,) = (line for line in undecided(gather(folder)) if "word order" in line)
    assert "more tokens (budgets)" in line
    assert re.findall(r"base\.\w+\.(\w+)", line) == left


def test_shapes_whose_word_order_was_not_measured_have_no_verdict(tmp_path: Path) -> None:
    folder = with_gains(tmp_path / "s", {1: None, 2: None})
    folder.write_ledger()
    answer = Answer(gather(folder, include_unbracketed=True), {})
    assert answer.headline == (
        "No verdict on shapes at equal non-embedding parameters: whether their encoders read word order was not measured; new "
        "runs measure it."
    )
    assert answer.verdict.certainty.startswith(
        "Whether these encoders read word order was not measured, which leaves no verdict"
    )
    assert answer.verdict.change == "new runs measure it"
    first, *_ = answer.findings["loss"]
    assert first.startswith("No verdict at equal non-embedding parameters: in 1 pair whether both encoders read word order")
    assert answer.to_dict()["comparisons"]["pairs"][0]["status"] == "order_not_measured"
    assert any(line.startswith("Whether 2 of 2 cells read word order") for line in answer.findings["undecided"])
    assert "order gain (nats)" not in answer.to_markdown()


def test_cells_of_runs_whose_training_loss_spiked_are_named(tmp_path: Path) -> None:
    folder = with_gains(tmp_path / "s", {1: 1.0, 2: 1.0})
    folder.write_ledger()
    assert not [line for line in undecided(gather(folder)) if "spiked" in line]
    for run in folder.runs():
        spiked = run.config().architecture.depth == 2 and run.config().seed < 2
        run.record_file.write_text(json.dumps(json.loads(run.record_file.read_bytes()) | {"loss_spikes": int(spiked)}))
    folder.write_ledger()
    (line,) = (line for line in undecided(gather(folder)) if "spiked" in line)
    assert line.endswith("a lower learning rate may spare: L2-H92-A2-F368 at 1M tokens (2 of 3 runs).")


def test_the_share_of_pairs_that_a_cell_judges_right_is_reported_where_there_are_pairs(tmp_path: Path) -> None:
    folder = with_gains(tmp_path / "s", {1: 1.0, 2: 1.0})
    assert "pair accuracy" not in undrawn(folder).to_markdown()
    for run in folder.runs():
        judged = {"pair_loss_nats": 0.6, "pair_accuracy": 0.5 + run.config().seed / 10}
        run.record_file.write_text(json.dumps(json.loads(run.record_file.read_bytes()) | judged))
    answer = undrawn(folder)
    assert "pair accuracy" in answer.to_markdown()
    assert answer.to_markdown().count("| 60.0% |") == 2, "each is the mean over three seeds"


@pytest.mark.slow
def test_single_seed_gives_no_verdict(tmp_path: Path) -> None:
    answer = checked(depth_or_width(tmp_path / "s", seeds=1, budgets=(1e6,), shapes=SMALL))
    assert "no cell has two usable seeds" in answer.headline
    assert "no seed replicates" in answer.to_markdown()


def test_empty_sweep(tmp_path: Path) -> None:
    answer = checked(sweep_folder(tmp_path / "s"))
    assert "no run was started" in answer.headline
    assert [*answer.figures] == ["what_doubling_adds"]


def test_what_doubling_a_size_adds_is_drawn_where_the_question_asks_about_sizes(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    folder.sweep_file.write_text(yaml.safe_dump(SWEEP | {"question": "Does the batch size change the loss?"}))
    assert [*report(folder).figures] == []


def test_runs_that_read_no_order_are_counted_with_those_at_chosen_rates(tmp_path: Path) -> None:
    """The deeper shape reads none at its best rate, the other none at the highest of three."""
    folder = sweep_folder(tmp_path / "s")
    for (depth, width), rate in product(SMALL, (1.5e-3, 3e-3, 6e-3)):
        unread = rate == (3e-3 if depth == 2 else 6e-3)
        add_run(folder, run_config(depth, width, rate), order_gain=0.0 if unread else 1.0)
    runs = next(line for line in checked(folder).to_markdown().splitlines() if line.startswith("**Runs:**"))
    assert runs.endswith(" 6 runs ended; 2 read no word order, 1 of them at a chosen learning rate.")
    assert "read no word order" not in checked(with_gains(tmp_path / "all", {1: 1.0, 2: 1.0})).to_markdown()


@pytest.mark.slow
def test_started_runs_are_distinguished_from_ended_ones(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, run_config(1, 128))
    config = run_config(2, 92)
    folder.run(config.fingerprint("synthetic")).write_config(config)
    answer = checked(folder)
    assert "**Runs:** 1 of 2 runs ended." in answer.to_markdown()
    assert any("1 run begun but not ended" in line for line in answer.to_dict()["findings"]["undecided"])
    for launched, expected in ((config, True), (run_config(1, 128), False)):
        folder.cells_file.write_text(json.dumps([cell_of(launched, folder.tuned(), "synthetic")]))
        assert any("begun" in line for line in undecided(gather(folder))) == expected, (
            "a run of an earlier launch is not gone on with"
        )
    folder.cells_file.unlink()
    shutil.rmtree(folder.run(config.fingerprint("synthetic")).path)
    ended = gather(folder)
    assert not [line for line in undecided(ended) if "begun" in line]
    (run,) = folder.runs()
    shutil.rmtree(run.path)
    assert not [line for line in undecided(ended) if "begun" in line], "a row whose run was deleted since is no run begun"


def test_a_run_whose_configuration_is_gone_has_it_from_its_record(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=SMALL)
    whole = undrawn(folder).to_markdown()
    for run in folder.runs()[:2]:
        run.config_file.unlink()
    assert undrawn(folder).to_markdown() == whole


def test_a_run_whose_losses_are_gone_or_damaged_is_left_out_and_named_with_a_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=SMALL)
    file = folder.runs()[0].validation_losses_file
    whole = file.read_bytes()
    for content, what in ((whole[:-8], "is damaged"), (b"", "is damaged"), (None, "does not exist")):
        file.unlink() if content is None else file.write_bytes(content)
        assert escape("validation_losses.npy is gone or damaged") in undrawn(folder).to_markdown()
        assert f"{file}: {what}, and comparisons need it; fetch it, or leave the run out: study exc" in caplog.text


@pytest.mark.slow
def test_text_that_runs_saw_again_is_reported(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6, 2e6), shapes=SMALL)
    assert not any("new text" in line for line in undrawn(folder).to_dict()["findings"]["undecided"])
    for run in folder.runs():
        record = json.loads(run.record_file.read_bytes())
        run.record_file.write_text(json.dumps(record | {"train_tokens": 127_000}))
    open_questions = undrawn(folder).to_dict()["findings"]["undecided"]
    (line,) = [line for line in open_questions if "new text" in line]
    assert line.startswith("What new text would do in place of repeated: runs passed up to 15.5 times over the 129.0k tokens")
    for run in folder.runs():
        record = json.loads(run.record_file.read_bytes())
        record["config"]["recipe"]["unique_tokens"] = 129_000
        run.record_file.write_text(json.dumps(record))
    asked = undrawn(folder).to_dict()["findings"]["undecided"]
    assert not any("new text" in line for line in asked), "repetition is what the sweep asks about"


@pytest.mark.slow
def test_text_that_the_tokeniser_does_not_know_is_reported(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", shapes=SMALL)
    for run, share in zip(folder.runs(), (None, 0.04, 0.2), strict=False):
        assert not any("[UNK]" in line for line in undrawn(folder).to_dict()["findings"]["undecided"]), share
        record = json.loads(run.record_file.read_bytes())
        run.record_file.write_text(json.dumps(record | {"unknown_share": share}))
    (line,) = [line for line in undrawn(folder).to_dict()["findings"]["undecided"] if "[UNK]" in line]
    assert line.startswith("What a tokeniser that knows more of this text would do: 20% of the text's tokens are [UNK],")


@pytest.mark.slow
def test_validation_text_that_trains_is_reported_above_five_percent_with_the_remedy(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", shapes=SMALL)
    for run, share in zip(folder.runs(), (None, 0.05, 0.42), strict=False):
        assert not any("13-token windows" in line for line in undrawn(folder).to_dict()["findings"]["undecided"]), share
        record = json.loads(run.record_file.read_bytes())
        run.record_file.write_text(json.dumps(record | {"validation_overlap_share": share}))
    (line,) = [line for line in undrawn(folder).to_dict()["findings"]["undecided"] if "13-token windows" in line]
    assert line == (
        "How the losses compare on text that was not trained on: 42.0% of the validation tokens stand in 13-token windows that "
        "occur in the training text, so losses reward memory too; data.dedupe: true leaves out what repeats."
    )


@pytest.mark.parametrize(
    ("states", "ways"),
    [
        (("FAILED", "HUNG"), "study retry"),
        (("OOM", "FAILED"), "study retry, with fewer runs at a time,"),
        (("FAILED", "DIVERGED"), "study retry or other learning rates"),
        (("DIVERGED", "DIVERGED"), "other learning rates"),
    ],
)
def test_what_may_help_where_no_run_can_be_used_goes_by_how_they_ended(
    states: tuple[State, ...], ways: str, tmp_path: Path
) -> None:
    folder = sweep_folder(tmp_path / "s")
    for seed, state in enumerate(states):
        add_run(folder, run_config(1, 64, seed=seed), state=state, reason="it ended")
    folder.write_ledger()
    (line,) = loss_findings(gather(folder))
    assert line.endswith(f"The ledger says nothing about loss yet; {ways} may.")


def test_what_may_help_runs_that_were_excluded_by_hand_is_to_take_them_back_in(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for seed in (0, 1):
        add_run(folder, run_config(1, 64, seed=seed))
    for run in folder.runs():
        run.exclusion_file.write_text('{"reason": "a broken GPU"}')
    folder.write_ledger()
    (line,) = loss_findings(gather(folder))
    assert line.endswith("2 excluded: a broken GPU). The ledger says nothing about loss yet; study exclude --undo may.")


def test_all_diverged(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for depth, width in SMALL:
        for rate in (1e-2, 2e-2):
            add_run(folder, run_config(depth, width, rate), state="DIVERGED")
    answer = checked(folder)
    assert "says nothing about loss yet; other learning rates may" in answer.headline
    assert "4 excluded (4 DIVERGED)" in answer.headline
    assert answer.to_dict()["findings"]["laws"] == ["No law is fitted: no run is usable."]
    assert answer.to_markdown().count("DIVERGED") == 6, "the verdict and the finding say it, and each run"


def test_excluded_runs_of_settings_and_budgets_are_distinguished(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for norm, tokens in product(("post", "pre"), (1e6, 2e6)):
        add_run(folder, in_setting(run_config(1, 64, tokens=tokens), norm=norm), state="DIVERGED", reason="loss became NaN")
    answer = undrawn(folder)
    excluded = answer.to_dict()["excluded"]
    rows = {(row["shape"], row["setting"], row["tokens"]) for row in excluded}
    trained_on = {record.config.tokens for record in folder.records()}
    assert len(trained_on) == 2
    assert rows == {("L1-H64-A2-F256", f"norm={norm}", count) for norm, count in product(("post", "pre"), trained_on)}
    for row in excluded:
        shown = f"| {row['run']} | {row['shape']} | {row['setting']} | {row['tokens']:,} | {row['learning_rate']} |"
        assert shown in answer.to_markdown()


def test_all_failed_with_hostile_reasons_and_a_hostile_name(tmp_path: Path) -> None:
    place = tmp_path / "s<script>\x1b[31m\u202e"
    folder = sweep_folder(place, SWEEP | {"name": "s", "question": "# <script>alert(1)</script> | *why*\n\n## no"})
    add_run(folder, run_config(1, 128), state="FAILED", reason="![x](http://x) | `rm`\n# heading")
    text = checked(folder).to_markdown()
    assert text.count(r"s\<script\>\[31m") == 2, "in the heading, and in how to make it again"
    assert not {"\x1b", "\u202e"} & {*text}
    assert not re.search(r"(?<!\\)<script", text)
    assert "\n## no" not in text
    assert r"\!\[x\](http://x) \| \`rm\` \# heading" in text


@pytest.mark.slow
def test_search_reports_best_and_front(tmp_path: Path) -> None:
    space = {"architecture.depth": {"low": 1, "high": 3}, "architecture.width": {"choices": [64, 128, 192]}}
    search = {"trials": 6, "sampler": "tpe", "objectives": ["loss_nats", "parameters"], "space": space}
    sweep = {key: value for key, value in SWEEP.items() if key not in ("shapes", "tune", "seeds")}
    folder = sweep_folder(tmp_path / "s", sweep | {"budgets": {"tokens": [1e6]}, "search": search})
    for depth, width, rate in ((1, 64, 2e-3), (1, 64, 4e-3), (2, 64, 3e-3), (1, 128, 4e-3), (3, 128, 1e-3), (2, 192, 3.5e-3)):
        add_run(folder, run_config(depth, width, rate))
    answer = checked(folder)
    assert (answer.evidence.comparisons.pairs, answer.evidence.comparisons.left_out) == ((), ())
    loss = answer.to_dict()["findings"]["loss"]
    assert "Lowest loss" in loss[0]
    assert any("No comparison at equal parameters" in sentence for sentence in loss)
    assert any(line.startswith("Lowest loss at 1M tokens: L2-H192") for line in loss)
    assert any("; the Pareto front below that size: L1-H64" in line for line in loss)
    assert len(answer.to_dict()["comparisons"]["front"]) >= 2
    expected = ["No law is fitted: a search finds the best rate of few sizes and may prune the others."]
    assert answer.to_dict()["findings"]["laws"] == expected


@pytest.mark.slow
def test_the_answer_says_where_the_best_rate_lies_and_which_cells_were_let_in(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=SMALL)
    strict = undrawn(folder).to_markdown()
    assert "were let in" not in strict
    assert re.search(r"\| yes \| 0\.00\d+ \(−0\.\d{4}\) \|", strict)
    edge = depth_or_width(tmp_path / "edge", rates=(4e-3, 8e-3), budgets=(1e6,), shapes=SMALL)
    assert "cells that are not bracketed were let in: L1-H128" in checked(edge, include_unbracketed=True).to_markdown()


def test_figure_without_data_is_taken_away(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    stale = folder.figures / "paired_differences.svg"
    stale.parent.mkdir()
    stale.write_text("old")
    checked(folder)
    assert not stale.exists()


def test_missing_sweep_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        report(SweepFolder(tmp_path))


@pytest.mark.slow  # tests/running/test_launch.py rebuilds a sweep where torch cannot be imported
def test_report_does_not_import_torch(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=SMALL)
    heavy = "{'torch', 'optuna', 'wandb', 'lightning', 'pytorch_lightning'}"
    code = f"""
import sys
from pathlib import Path
from study.report.answer import report
from study.store.sweep_folder import SweepFolder
report(SweepFolder(Path({str(folder.path)!r})))
assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)
training = {"data", "model", "training", "executing", "planning", "running"}
assert not [name for name in sys.modules if name.startswith('study.') and name.split('.')[1] in training]
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


class Leaving(Law):
    """A law of the plateau's end, by which each doubling of the tokens buys more than the one before."""

    def loss(self, config: RunConfig) -> float:
        """The usual loss less 0.1 nats times the square of the doublings."""
        return super().loss(config) - 0.1 * math.log2(config.tokens / 1e6) ** 2


def _in_units(folder: SweepFolder, per_byte: bool) -> Evidence:
    """The evidence of losses of as many nats per masked token, or as many bits per byte."""
    plain = gather(folder, include_unbracketed=True)
    size = math.log(2) if per_byte else 1.0
    loud = plain.cells[0].name  # whose seeds scatter more than those of others
    scattered = {loud: 0.2 * np.array([[-1], [1]])}
    cells = tuple(
        replace(cell, per_byte=per_byte, losses=size * (cell.losses + scattered.get(cell.name, 0))) for cell in plain.cells
    )
    families = families_of(cells)
    actual = replace(plain, cells=cells, families=families, comparisons=compare(families, include_unbracketed=True))
    cut = Cut("whole", "cut", "1M tokens", 1, 100, actual.comparisons.pairs[0].difference)
    return with_facts(actual, cuts=(cut,), laws=SweepLaws((), ()))


def _texts(evidence: Evidence) -> Iterator[str]:
    """All that an answer says of losses, but for the table of cells."""
    yield from (*loss_findings(evidence), *law_findings(evidence), *undecided(evidence), verdict_of(evidence).sentence)
    yield from (table(evidence) for table in (answer_tables.averages, answer_tables.gains, answer_tables.token_gains))
    yield from (answer_tables.cuts(evidence), answer_tables.differences(evidence, of_shapes=True))


def test_losses_per_byte_are_in_bits_per_byte_wherever_others_are_in_nats(tmp_path: Path) -> None:
    """As many bits as nats give the same texts but for the unit."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), tokens, seed in product(((1, 64), *SMALL), (1e6, 2e6, 4e6), (0, 1)):
        add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), Leaving())
    folder.write_ledger()
    nats, bits = ([*_texts(_in_units(folder, per_byte))] for per_byte in (False, True))
    text = "\n".join(nats)
    for part in ("at its 3 conditions", "nats lowered per doubling of the tokens", "buys more", "layer costs", "nats for"):
        assert part in text
    assert [line.replace("bits per byte", "nats") for line in bits] == nats
    assert not any("nats" in line for line in bits)
