"""An answer opens with one sentence that answers the sweep's question, and the whole of it is short."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from study.config.recipe import TrainingMasking
from study.config.run_config import RunConfig
from study.evidence.cells import DETECTED
from study.evidence.comparisons import METHOD
from study.evidence.downstream import FREE_FROM
from study.evidence.evidence import Evidence, gather
from study.evidence.ledgers import LOSS
from study.plotting import parameters_loss_score, score_against_loss
from study.report import verdicts
from study.report.answer import METHOD_PAGE, Answer
from study.report.findings import dominance_sentences, loss_findings
from study.report.notebooks import scrolling_tables
from study.report.open_questions import undecided
from study.report.verdicts import asks_about, verdict_of
from study.store.records import READS_ORDER_NATS
from study.store.sweep_folder import SweepFolder
from tests.figures import title_of
from tests.synthetic import SWEEP, Law, add_run, depth_or_width, in_setting, reshaped, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_scores

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
ANSWERS = sorted(REFERENCE.glob("*/answer.md"))

BEFORE_THE_FIGURE = 120
IN_VIEW = 900


def in_view(text: str) -> str:
    """A page without what lies in folds."""
    return re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)


def evidence_of(folder: SweepFolder, include_unbracketed: bool = False) -> Evidence:
    folder.write_ledger()
    return gather(folder, include_unbracketed)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.parent.name)
def test_a_committed_answer_opens_with_its_verdict_and_is_short(answer: Path) -> None:
    text = in_view(answer.read_text())
    before, figure, _ = text.partition("![")
    assert figure, "a figure shows the verdict"
    assert len(before.split()) <= BEFORE_THE_FIGURE
    assert len(text.split()) <= IN_VIEW
    _, question, verdict, certainty, _ = before.split("\n\n")
    assert question.startswith("> **Question.** ")
    assert re.fullmatch(r"\*\*.+\.\*\*", verdict), "the first sentence answers"
    assert certainty.startswith("**How sure:** ")
    assert "95% interval" in verdict or "No verdict" in verdict or "no interval" in verdict
    assert text.count("**What would change this:** ") == 1
    assert " seeds each" not in answer.read_text(), "n and seeds are said once, not in each sentence"


def test_every_reference_has_an_answer() -> None:
    sweeps = {path.parent for path in REFERENCE.glob("*/sweep.yaml")}
    assert {path.parent for path in ANSWERS} == sweeps
    assert len(ANSWERS) >= 17


def test_pairs_that_no_page_shows_at_a_glance_are_shown_as_averages_or_else_as_a_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for seed in (0, 1):
        for depth, width in ((1, 128), (4, 64)):
            add_run(folder, run_config(depth, width, seed=seed))
    evidence = evidence_of(folder, include_unbracketed=True)
    assert verdict_of(evidence).figures[0] == "paired_differences"
    monkeypatch.setattr(verdicts, "MOST_PAIRS", 0)
    assert verdict_of(evidence).figures[:2] == ("loss_by_depth", "paired_differences")
    for seed in (0, 1):
        for depth, width in ((1, 128), (4, 64)):
            add_run(folder, run_config(depth, width, seed=seed, tokens=2e6))
    evidence = evidence_of(folder, include_unbracketed=True)
    assert len(evidence.averages) == 1
    assert verdict_of(evidence).figures[0] == "paired_differences"


@pytest.mark.slow
def test_a_question_about_scores_is_answered_with_scores(tmp_path: Path) -> None:
    question = "Does a lower loss mean higher scores, and on which tasks?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "tune": {}, "downstream": ["sst2", "cola"]})
    for width in (32, 64, 96, 128, 160):
        for seed in (0, 1):
            add_run(folder, run_config(1, width, seed=seed))
    folder.write_ledger()
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "cola")})
    answer = Answer(evidence_of(folder), {"loss_curves": "", "score_against_loss": ""})
    assert answer.headline.startswith("Scores ")
    untrained = r", where they have [+-]0\.\d\d untrained and what training adds has [+-]\d\.\d\d\.$"
    assert re.search(r" a rank correlation of \S+ \(.*\) with the falling loss on average" + untrained, answer.headline)
    assert "encoders, adjusted by Holm over 2 tasks" in answer.verdict.certainty
    data = parameters_loss_score.frame(answer.evidence)
    assert len(data) == 5, "one point an encoder, of the average over tasks"
    cells = {cell.name: cell for cell in answer.evidence.cells}
    assert data["loss_nats"].tolist() == [cells[name].loss_nats for name in data["cell"]]
    assert data["parameters"].tolist() == [cells[name].parameters for name in data["cell"]]
    left, middle, right = parameters_loss_score.draw(data).axes
    assert middle.xaxis_inverted(), "the loss falls to the right, so that better is up and right"
    assert left.get_xlabel() == right.get_xlabel() == "parameters"
    beside_another = data.assign(unit=[DETECTED, *data["unit"][1:]], loss_nats=[float("nan"), *data["loss_nats"][1:]])
    assert LOSS in " ".join(title_of(parameters_loss_score.draw(beside_another)).split()), "the unit is of the losses shown"
    assert "](figures/score_against_loss.svg)" in answer.to_markdown().partition("What would change")[0]
    first, scored = data["cell"].iloc[0], data["loss_nats"].iloc[0]
    add_run(folder, run_config(1, 32, seed=2))
    folder.write_ledger()
    evidence = evidence_of(folder)
    again = parameters_loss_score.frame(evidence).set_index("cell").loc[first]
    assert again["loss_nats"] == scored, "a run without a score is not in the loss beside it"
    against = score_against_loss.frame(evidence)
    assert set(against.loc[against["cell"] == first, "x"]) == {scored}


@pytest.mark.parametrize(
    ("best_learning_rates", "headline"),
    [
        (
            {0.15: 3e-4, 0.3: 3e-3, 0.4: 3e-3},
            r"scores are highest with [34]0% masks, \S+ \(95% interval \S+ to \S+\), significantly above those with 15% masks "
            r"\(\S+\), but not significantly above those with [34]0% masks \(\S+\)\.",
        ),
        (
            {0.3: 3e-3, 0.4: 3e-3},
            r"the highest score is \S+ \(95% interval \S+ to \S+\) with [34]0% masks, not significantly above any other, and "
            r"the lowest is that with [34]0% masks \(\S+\)\.",
        ),
    ],
)
def test_a_question_about_the_scores_of_variants_is_answered_with_the_best(
    tmp_path: Path, best_learning_rates: dict[float, float], headline: str
) -> None:
    question = {"question": "Which masking rate teaches more for tasks?", "downstream": ["sst2", "cola"], "seeds": 2}
    vary = {"recipe.masking.rate": [*best_learning_rates]}
    folder = sweep_folder(tmp_path / "s", SWEEP | question | {"tune": {}, "vary": vary})
    for rate, best in best_learning_rates.items():
        for seed in (0, 1):
            add_run(folder, in_setting(run_config(1, 64, seed=seed), masking=TrainingMasking(rate=rate)), Law(best_rate=best))
    folder.write_ledger()
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "cola")})
    answer = Answer(evidence_of(folder, include_unbracketed=True), {"score_against_loss": "", "score_against_flops": ""})
    assert re.fullmatch(rf"Averaged over 2 tasks \(0 chance, 1 perfect\), {headline}", answer.headline), answer.headline
    assert "](figures/score_against_flops.svg)" in answer.to_markdown().partition("What would change")[0]


def test_a_question_about_tokens_is_answered_with_tokens(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6, 4e6), shapes=((1, 64), (1, 128)))
    file = folder.sweep_file
    file.write_text(file.read_text().replace(SWEEP["question"], "How does the loss fall with the tokens?"))
    sentence = verdict_of(evidence_of(folder)).sentence
    assert sentence.startswith("From 1M to 4M tokens the loss falls significantly in 2 of 2 encoders, by ")
    assert sentence.endswith(" in the median.")


def test_single_seeds_lower_the_loss_but_test_nothing(tmp_path: Path) -> None:
    question = "How does the loss fall with the tokens?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "tune": {}, "seeds": 1})
    for width in (64, 128):
        for tokens in (1e6, 4e6):
            add_run(folder, run_config(1, width, tokens=tokens))
    folder.write_ledger()
    sentence = verdict_of(evidence_of(folder)).sentence
    assert sentence.startswith("From 1M to 4M tokens the loss falls in 2 of 2 encoders, by ")
    assert sentence.endswith(" nats (no interval, as single seeds test nothing) in the median.")


def test_a_question_about_size_tokens_and_a_knob_is_answered_in_each(tmp_path: Path) -> None:
    """The knob by its values, although the question names none of them; shapes only if it asks for sizes."""
    file = {"tune": {}, "seeds": 3, "vary": {"architecture.norm": ["post", "pre"]}}
    question = "How does the loss fall with {} the tokens, before and after the norm?"
    law = Losses(
        nats=lambda config: (
            5 - 2e-3 * config.architecture.width - 5e-8 * config.tokens - 0.2 * (config.architecture.norm == "pre")
        )
    )
    for name, asked in (("s", "the width and"), ("t", "")):
        folder = sweep_folder(tmp_path / name, SWEEP | file | {"question": question.format(asked)})
        for width, tokens, norm, seed in product((64, 128), (1e6, 4e6), ("post", "pre"), range(3)):
            add_run(folder, in_setting(run_config(1, width, seed=seed, tokens=tokens), norm=norm), law)
        folder.write_ledger()
        sentence = verdict_of(evidence_of(folder, include_unbracketed=True)).sentence
        of_width = r"with more width in 4 of 4 steps, by 0\.1\d\d nats \(.*\), " if asked else ""
        assert re.fullmatch(
            r"From 1M to 4M tokens the loss falls significantly in 4 of 4 encoders, by 0\.1\d\d nats "
            rf"\(95% interval .*\) in the median, {of_width}and at equal shape, the loss with pre-norm is "
            r"0\.2\d\d nats \(.*\) below that with post-norm on average( over 4 conditions)?\.",
            sentence,
        ), sentence
        assert len(sentence.split()) <= 65


def test_a_question_about_the_learning_rate_is_answered_with_how_far_it_moves(tmp_path: Path) -> None:
    question = "Does the best learning rate stay when the width grows?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "vary": {"recipe.schedule": ["linear", "wsd"]}})
    for position, width in enumerate((32, 64, 128)):
        for schedule, moves in (("linear", 1), ("wsd", 4)):
            law = Law(best_rate=1.6e-2 / moves**position, seed_deviation=0.0)
            for rate in 2.0 ** np.arange(-12.0, -3.0):
                add_run(folder, run_config(1, width, float(rate), schedule=schedule), law)
    evidence = evidence_of(folder)
    stays, moves_on = sorted(evidence.rate_transfers, key=lambda transfer: transfer.factor)
    assert stays.factor == pytest.approx(1, abs=0.1)
    assert moves_on.factor == pytest.approx(16, rel=0.1)
    sentence = verdict_of(evidence).sentence
    assert re.match(r"Over 3 shapes from L1-H32\S* to L1-H128\S*, the best learning rate moves", sentence)
    interval = r"\(95% interval 1 to 1(\.\d+)?\)"
    assert re.search(rf"by a factor of 1(\.\d)? {interval} under schedule linear, from [\d.e-]+ to [\d.e-]+ ", sentence)
    assert re.search(r"and by a factor of 1[67] \(1[56](\.\d)? to 1[678](\.\d)?\) under schedule wsd", sentence)


def test_each_knob_that_the_question_names_has_a_clause_and_seeds_are_said_once(tmp_path: Path) -> None:
    vary = {"architecture.norm": ["post", "pre"], "architecture.tied_decoder": [True, False]}
    folder = sweep_folder(
        tmp_path / "s", SWEEP | {"question": "Which norm, and a tied decoder or not?", "tune": {}, "vary": vary}
    )
    for norm in ("post", "pre"):
        for tied in (True, False):
            for seed in (0, 1, 2):
                add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm, tied_decoder=tied))
    verdict = verdict_of(evidence_of(folder, include_unbracketed=True))
    assert all(f"with {side}" in verdict.sentence for side in ("pre-norm", "post-norm", "a tied decoder", "an untied decoder"))
    assert verdict.sentence.count("95% interval") == 1
    assert verdict.certainty.endswith("Measured with 3 seeds a cell on 200 validation sequences.")


def test_another_equal_quantity_with_the_same_winner_is_left_to_the_findings() -> None:
    verdict = verdict_of(gather(SweepFolder(REFERENCE / "gated_ffn")))
    assert verdict.sentence.count("t equal ") == 1
    assert "the loss with GELU is 0.108 nats" in verdict.sentence


def test_a_verdict_on_shapes_names_a_pair_that_differs(tmp_path: Path) -> None:
    """One layer of width 128 is lowest of its size, but scatters so it differs from neither of the others significantly."""

    def nats(config: RunConfig) -> float:
        width = config.architecture.width
        return {32: 4.4, 64: 4.1, 128: 3.7 + 0.3 * config.seed}[width]

    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "Deeper or wider?", "tune": {}})
    for (depth, width), seed in product(((16, 32), (4, 64), (1, 128)), range(3)):
        add_run(folder, run_config(depth, width, seed=seed), Losses(nats=nats))
    said = verdict_of(evidence_of(folder, include_unbracketed=True)).sentence
    assert re.search(r"L4-H64-A2-F256 is 0\.\d+ nats .* below L16-H32-A2-F128", said)
    assert "not significant" not in said


def test_pairs_with_cells_of_one_seed_that_nothing_tests_are_not_counted_as_tested(tmp_path: Path) -> None:
    """Where other cells of their budget scatter unevenly, nothing shows what chance does to a single seed."""

    def nats(config: RunConfig) -> float:
        width = config.architecture.width
        return 4 - config.tokens / 1e8 - 0.5 * (width == 128) + 0.3 * config.seed * (width == 92)

    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "Deeper or wider?", "tune": {}})
    once = ((4, 64, 4e6), (1, 128, 4e6))
    thrice = ((4, 64, 1e6), (1, 128, 1e6), (4, 64, 2e6), (1, 128, 2e6), (16, 32, 4e6), (2, 92, 4e6))
    for (depth, width, tokens), seed in (*product(once, range(1)), *product(thrice, range(3))):
        add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), Losses(nats=nats))
    evidence = evidence_of(folder, include_unbracketed=True)
    verdict = verdict_of(evidence)
    assert "in 2 of 8 pairs" in verdict.sentence
    assert verdict.certainty.startswith("Tests at 5%, adjusted by Holm over 3 pairs, 2 significant")
    assert "is lower in 0, the shallower (wider) in 2, undecided 1, untested 5 (Holm, 5%)." in loss_findings(evidence)[0]


def test_a_side_that_was_not_tested_is_not_called_insignificant(tmp_path: Path) -> None:
    """The shape between the other two has one seed, and cells scatter unevenly."""

    def nats(config: RunConfig) -> float:
        width = config.architecture.width
        return 4 - config.tokens / 1e8 - 0.002 * width + 0.001 * config.seed * (20 if width == 128 else 1)

    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "Deeper or wider?", "tune": {}})
    for (depth, width), seeds in (((4, 64), 3), ((2, 92), 1), ((1, 128), 3)):
        for seed, tokens in product(range(seeds), (1e6, 2e6)):
            add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), Losses(nats=nats))
    sentence = verdict_of(evidence_of(folder, include_unbracketed=True)).sentence
    assert "but untested against L2-H92" in sentence


def test_the_family_of_holm_is_all_pairs_of_a_sweep() -> None:
    """The answer on repeated text names the pairs with new text alone."""
    evidence = gather(SweepFolder(REFERENCE / "repeated_text"))
    tested = sum(pair.p_value_holm is not None for pair in evidence.comparisons.pairs)
    assert f"adjusted by Holm over {tested} pairs" in verdict_of(evidence).certainty


def test_an_average_that_turns_between_conditions_says_so(tmp_path: Path) -> None:
    """Muon is lower with pre-norm and AdamW with post-norm."""
    vary = {"architecture.norm": ["post", "pre"], "recipe.optimizer": ["adamw", "muon"]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "Which norm?", "tune": {}, "vary": vary})

    def nats(config: RunConfig) -> float:
        muon, pre = config.recipe.optimizer == "muon", config.architecture.norm == "pre"
        return 4 + 0.4 * (muon != pre) - 0.01 * pre + 0.002 * config.seed

    for norm, optimizer, seed in product(vary["architecture.norm"], vary["recipe.optimizer"], range(3)):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm, optimizer=optimizer), Losses(nats=nats))
    sentence = verdict_of(evidence_of(folder, include_unbracketed=True)).sentence
    assert "though each is significantly lower in some conditions" in sentence


def test_counts_stand_only_where_the_question_asks_about_parameters(tmp_path: Path) -> None:
    for question, asked in (
        ("At equal parameters, does depth or width lower the loss more?", False),
        ("At equal non-embedding parameters and depth, which width?", False),
        ("What loss does an encoder of 0.2M non-embedding parameters reach after 9.6M tokens?", False),
        ("Which size costs the fewest parameters at equal loss?", True),
    ):
        folder = sweep_folder(tmp_path / f"words-{len(question)}", SWEEP | {"question": question})
        add_run(folder, run_config(1, 64))
        evidence = evidence_of(folder)
        assert asks_about(evidence, "parameter") == asked
        assert ("doubling depth +85.1M" in Answer(evidence, {}).to_markdown()) == asked


def test_the_page_of_conventions_says_what_the_code_does() -> None:
    """Every status of a rate, and the numbers and methods that stand in code too."""
    text = " ".join((Path(__file__).parents[2] / METHOD_PAGE).read_text(encoding="utf-8").split())
    assert all(f"**{status}**: " in text for status in ("Chosen rate", "Bracketed", "Transferred", "Vertex"))
    assert METHOD in text
    assert f"not above {READS_ORDER_NATS:g} nats by two standard errors" in text
    assert f"Of fewer than {FREE_FROM} shapes chance is taken as measured" in text


@pytest.mark.parametrize("name", ["depth_or_width", "heads", "norm", "tokenizers", "width_and_tokens"])
def test_a_committed_answer_has_fewer_than_900_words_with_its_folds(name: str) -> None:
    """Tables apart, as what all answers share stands on the page of conventions."""
    folder = SweepFolder(REFERENCE / name)
    answer = Answer(gather(folder), dict.fromkeys(sorted(path.stem for path in folder.figures.glob("*.svg")), "words " * 8))
    text = answer.to_markdown()
    assert f"`{METHOD_PAGE}`" in text, "which docs/render.py makes a link"
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(re.sub(r"<[^>]*>", "", "\n".join(prose)).split()) < 900


def test_folds_open_in_the_dashboard_with_their_tables(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, run_config(1, 64))
    text = Answer(evidence_of(folder), {}).to_markdown()
    shown = scrolling_tables(text).text
    assert shown.count("<details") == text.count("<details markdown") > 2
    assert "<summary>Cells</summary>" in shown
    assert "<table>" in shown
    assert "markdown=" not in shown
    assert "///" not in shown


def test_a_comparison_that_is_missing_is_the_answer(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width in (64, 128):
        add_run(folder, run_config(1, width))
    sentence = verdict_of(evidence_of(folder)).sentence
    assert sentence.startswith("No answer yet: no comparison at equal parameters: ")


def test_a_single_cell_is_reported_with_the_noise_of_its_sequences(tmp_path: Path) -> None:
    sweep = {key: value for key, value in SWEEP.items() if key != "shapes"} | {"shapes": {"list": [{"depth": 1, "width": 64}]}}
    folder = sweep_folder(tmp_path / "s", sweep | {"question": "How low does it get?", "tune": {}})
    add_run(folder, run_config(1, 64))
    verdict = verdict_of(evidence_of(folder))
    assert re.match(
        r"The lowest loss is \d\.\d{3} nats \(95% interval .* over validation sequences\), by L1-H64", verdict.sentence
    )
    assert verdict.certainty == "Measured with 1 seed; nothing is compared with it."


@dataclass(frozen=True)
class Losses(Law):
    """The loss of a configuration by a function, in nats."""

    nats: Callable[[RunConfig], float] = field(kw_only=True)

    def loss(self, config: RunConfig) -> float:
        return self.nats(config)


def batches(config: RunConfig) -> float:
    """A batch of 512 tokens is lowest at 1M tokens, one of 1,024 at 4M."""
    best = 512 if config.tokens < 2e6 else 1024
    return 5.0 + 0.3 * (config.recipe.batch_tokens != best)


def test_the_best_value_is_named_at_the_smallest_and_at_the_largest_budget(tmp_path: Path) -> None:
    asked = {"question": "Which batch is best, and does the best one grow with the budget?", "tune": {}}
    folder = sweep_folder(tmp_path / "s", SWEEP | asked | {"vary": {"recipe.batch_tokens": [512, 1024]}})
    for batch, tokens, seed in product((512, 1024), (1e6, 4e6), range(3)):
        add_run(folder, run_config(1, 64, seed=seed, tokens=tokens, batch_tokens=batch), Losses(nats=batches))
    sentence = verdict_of(evidence_of(folder, include_unbracketed=True)).sentence
    assert re.fullmatch(
        r"The best value moves from a batch of 512 tokens at 1M tokens, 0\.[23]\d\d nats \(95% interval .*\) below a batch of "
        r"1,024 tokens, to a batch of 1,024 tokens at 4M tokens, 0\.[23]\d\d nats \(.*\) below a batch of 512 tokens\.",
        sentence,
    ), sentence


def test_repeated_text_is_reported_in_passes(tmp_path: Path) -> None:
    asked = {"question": "How often may a text be read?", "tune": {}, "vary": {"recipe.unique_tokens": [1e6, 5e5, 1e5]}}
    folder = sweep_folder(tmp_path / "s", SWEEP | asked)
    law = Losses(nats=lambda config: 5.0 + 0.4 * (config.recipe.unique_tokens == 1e5))
    for width, unique, seed in product((64, 128), (1e6, 5e5, 1e5), range(3)):
        add_run(folder, run_config(1, width, seed=seed, unique_tokens=unique), law)
    sentence = verdict_of(evidence_of(folder, include_unbracketed=True)).sentence
    none = r"Averaged over 2 shapes, 2 passes over a text cost no significant loss beside new text, \S+ nats \(95% interval"
    assert re.match(none, sentence), sentence
    assert re.search(
        r", and 10 passes cost 0\.\d+ nats \(.*\) for L1-H64\S* and 0\.\d+ nats \(.*\) for L1-H128\S*\.$", sentence
    )


def test_a_question_of_how_low_is_answered_with_the_loss_of_each_shape(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "How low do they end?", "tune": {}})
    for depth, width, seed in product((1,), (64, 128), range(3)):
        add_run(folder, run_config(depth, width, seed=seed), Losses(nats=lambda config: 4 - config.architecture.width / 1e3))
    sentence = verdict_of(evidence_of(folder)).sentence
    loss = r"3\.\d{3} nats \((95% interval )?3\.\d{3} to 3\.\d{3} over seeds\)"
    assert re.fullmatch(rf"At 1M tokens the loss ends at {loss} for L1-H128\S* and {loss} for L1-H64\S*\.", sentence), sentence


def test_what_the_question_does_not_name_is_found_besides(tmp_path: Path) -> None:
    vary = {"architecture.norm": ["post", "pre"], "recipe.optimizer": ["adamw", "muon"]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "Which optimizer?", "tune": {}, "vary": vary})
    law = Losses(nats=lambda config: 5 + 0.3 * (config.architecture.norm == "pre") + 0.5 * (config.recipe.optimizer == "adamw"))
    for norm, optimizer, seed in product(("post", "pre"), ("adamw", "muon"), range(3)):
        add_run(folder, in_setting(run_config(1, 64, seed=seed, optimizer=optimizer), norm=norm), law)
    answer = Answer(evidence_of(folder, include_unbracketed=True), {})
    assert re.match(r"At equal shape, the loss with Muon is 0\.5\d\d nats \(.*\) below that with AdamW", answer.headline)
    (besides,) = answer.verdict.also
    assert re.match(r"At equal shape, the loss with post-norm is 0\.\d+ nats .* below that with pre-norm", besides)
    assert besides.removesuffix(".") in answer.to_markdown().partition("**Also found**")[2].partition("<details")[0]


@pytest.mark.slow
def test_a_question_about_larger_encoders_is_answered_by_size(tmp_path: Path) -> None:
    question = "Do larger encoders score higher on every task?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "tune": {}, "downstream": ["sst2", "cola"]})
    for width in (32, 64, 160):
        for seed in (0, 1):
            add_run(folder, run_config(1, width, seed=seed))
    folder.write_ledger()
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "cola")})
    sentence = verdict_of(evidence_of(folder)).sentence
    assert re.match(
        r"The largest encoder scores highest on (none|\d) of 2 tasks, with 0\.\d{3} \(95% interval .*\) on average", sentence
    ), sentence


ANSWERED = {
    "batch_size": r"from a batch of 256 tokens at 200k tokens, 0\.030 nats .*to a batch of 512 .*at 800k tokens, 0\.064 nats",
    "cut_as_it_is": r"at least 0\.192 nats .*for 1 layer and 0\.591 nats .*for 2 layers, with .* evenly spread layers",
    "cut_distil_or_scratch": r"0\.358 nats .*below one trained from scratch for 640k .*and 0\.200 nats .*above .*1\.6M tokens",
    "depth_curve": r"L1-H88-A4-F336 is 0\.433 nats .*below L12-H24-A4-F100",
    "distance_bias": r"a learned distance bias is 0\.244 nats .*with no distance bias .*and 0\.176 nats .*with ALiBi",
    "embedding_norm": r"with a norm of the embeddings is 0\.131 nats .*below that with no norm of the embeddings",
    "equal_total": r"At equal total parameters, no difference in 12 pairs .*L4-H64-A4-F256 minus L1-H96-A6-F384, is -0\.0157",
    "depth_or_width": r"more width lowers .* in 1 of 12 pairs and more depth in none: L1-H80-A5-F320 is 0\.055",
    "depth_or_width_modern2": r"width lowers the loss significantly in 5 of 12 pairs .*L1-H80-A5-F320 is 0\.091 nats",
    "disentangled": r"the loss with rotary positions is 0\.141 nats .*below that with disentangled attention",
    "factorised_embeddings": r"of full width is 0\.775 nats .*of width 12 .*and 0\.266 nats .*of width 48",
    "ffn_or_width": r"more width lowers the loss significantly in 11 of 20 pairs and a larger FFN in none: .* is 0\.240 nats",
    "forecast_six_times": r"the loss at 200k non-embedding parameters and 9\.6M tokens, 3\.183 nats, is known to ± 4\.0%",
    "forecast_target": r"is 3\.109 nats \(95% interval 3\.012 to 3\.206",
    "gated_ffn": r"the loss with GELU is 0\.108 nats .*below that with GeGLU .*and 0\.096 nats .*below that with SwiGLU",
    "heads": r"L2-H96-A4-F384 is 0\.155 nats .*below L2-H96-A1-F384 .*0\.034 nats .*below L2-H96-A2-F384",
    "int8_or_smaller": r"Int8 L4-H96-A3-F384 .*ends 0\.373 nats .*below L4-H40-A2-F160 in fp32",
    "layer_losses": r"hidden states and attention beside masked words is 0\.264 nats .*below .*'s predictions beside masked",
    "loss_and_scores": r"follow the loss on docstring-code, docstring-order and docstring-package, .*correlation of \+0\.98",
    "mask_decoder": r"a plain last layer is 0\.134 nats .*below that with the enhanced mask decoder",
    "mlm_transform": r"the loss with no MLM transform is 0\.171 nats .*below that with an MLM transform",
    "next_preset": r"with pre-norm is 0\.037 nats .*with post-norm .*with no MLM transform is 0\.220 nats",
    "masking_rate": r"the loss with 40% masks is 0\.315 nats .*with 15% masks .*and 0\.052 nats .*with 30% masks",
    "mlm_or_rtd": r"highest with masked-word prediction, 0\.460 .*above those with replaced-token detection \(0\.346\)",
    "next_sentence": r"the highest score is 0\.446 .*, not significantly above any other",
    "norm": r"the loss with post-norm is 0\.092 nats .*below that with pre-norm",
    "positions": r"a learned distance bias is 0\.531 nats .*below that with ALiBi",
    "presets": r"with preset modern2 is 0\.287 nats .*below that with preset modern on average over 4 conditions",
    "preset_parts": r"bias is 0\.243 nats .*where both read word order, with Muon 0\.299 .*masks 0\.288 .*positions 0\.190",
    "projection_start": r"a projection that starts at unit scale is 0\.106 nats .*below that with BERT's initialisation",
    "query_key_norm": r"no difference in 12 pairs is significant: .* residual initialisation zero .* is \+0\.0033 nats",
    "rate_transfer": r"of 1\.4 \(95% interval 1 to 2\.3\) under CompleteP, .* of 4\.9 \(2\.4 to 11\) under the standard",
    "rate_transfer_muon": r"of 1\.1 \(95% interval 1 to 2\.2\) under CompleteP, .* of 2\.5 \(1\.5 to 5\.9\) under the standard",
    "repeated_text": r"2 passes .* 0\.051 nats .*, 8 passes .* 0\.151 nats .* 1\.151 .* L2-H48.* and 1\.407 .* L2-H96",
    "shared_layers": r"shared layers is 0\.191 nats .*with unshared .*at equal shape, .*with unshared layers is 0\.092 nats",
    "size_and_tokens": r"in 8 of 8 encoders, by 0\.317 nats .* rotary positions is 0\.870 nats",
    "static_masks": r"new masks at every visit is 1\.118 nats .*masks written once .*and 0\.175 nats .*masks written 10 times",
    "suite": r"more width lowers .* in 6 of 55 pairs and more depth in none: L1-H128-A4-F512 is 0\.383 nats",
    "tokenizers": r"the loss with Unigram is 0\.303 bits per byte .*below that with byte-level BPE",
    "vocabulary": r"the loss with 4,096 pieces is 1\.002 bits per byte .*below that with 512 pieces",
    "width_and_tokens": r"in 5 of 5 encoders, by 0\.368 nats .* and with more width in 8 of 16 steps, by 0\.078 nats",
}
"""What the verdict of each committed sweep says: who wins, and by how much."""


def test_each_committed_sweep_has_its_answer_here() -> None:
    assert {*ANSWERED} == {path.parent.name for path in REFERENCE.glob("*/sweep.yaml")}


LONG = ("loss_and_scores", "size_and_tokens")
"""The sweeps whose laws and scores take seconds."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in ANSWERED])
def test_a_committed_sweep_is_answered_in_one_sentence_of_plain_words(name: str) -> None:
    verdict = verdict_of(gather(SweepFolder(REFERENCE / name)))
    assert re.search(ANSWERED[name], verdict.sentence), verdict.sentence
    assert not {"=", ";"} & {*verdict.sentence}
    assert not any("=" in sentence for sentence in verdict.also)
    assert "95% interval" in verdict.sentence or "no interval" in verdict.sentence
    assert len(verdict.sentence.split()) <= 65


def asked(path: Path, question: str, configs: list[RunConfig], nats: Callable[[RunConfig], float], **sweep: object) -> Evidence:
    """The evidence of three seeds of each configuration."""
    folder = sweep_folder(path, SWEEP | {"question": question, "tune": {}} | sweep)
    for config, seed in product(configs, range(3)):
        add_run(folder, config.model_copy(update={"seed": seed}), Losses(nats=nats))
    return evidence_of(folder)


def test_a_loss_that_rises_keeps_its_sign(tmp_path: Path) -> None:
    """With the budget, with more depth, and where layers that are cut off lower it."""
    by_depth = [run_config(depth, 64, tokens=tokens) for depth, tokens in product((1, 2), (1e6, 4e6))]
    question = "How does the loss fall with tokens and depth?"
    longer = asked(tmp_path / "longer", question, by_depth[:2], lambda config: 4 + 0.1 * (config.tokens > 2e6))
    assert re.search(
        r"falls significantly in 0 of 1 encoder; it changes by \+0\.\d+ nats .* in the median", verdict_of(longer).sentence
    )

    def deeper_is_worse(config: RunConfig) -> float:
        return 4 + 0.2 * (config.architecture.depth > 1) - 0.3 * (config.tokens > 2e6)

    deeper = verdict_of(asked(tmp_path / "deeper", question, by_depth, deeper_is_worse)).sentence
    assert re.search(r"falls significantly in 2 of 2 encoders, by 0\.\d+ nats", deeper)
    assert re.search(r"with more depth in 0 of 2 steps; it changes by \+0\.\d+ nats", deeper)


def test_the_largest_step_is_one_that_lowers_the_loss_and_steps_that_raise_it_are_apart(tmp_path: Path) -> None:
    def nats(config: RunConfig) -> float:
        return 4 + 0.5 * (config.architecture.depth > 1) - 0.1 * (config.architecture.width > 64)

    sizes = [run_config(depth, width) for depth, width in product((1, 2), (64, 128))]
    shapes = {"grid": {"depth": [1, 2], "width": [64, 128]}}
    sentence = verdict_of(asked(tmp_path / "s", "Are larger ones better?", sizes, nats, shapes=shapes)).sentence
    assert re.match(r"2 of 4 steps to a larger size lower the loss significantly, the largest width from .*, -0\.", sentence)
    assert re.search(r" 2 raise it, the largest depth from .*, \+0\.", sentence)


def test_the_largest_encoder_is_shown_at_its_best_budget(tmp_path: Path) -> None:
    tasks = {name: TASKS[name] for name in ("sst2", "cola")}
    question = "Do larger encoders score higher on every task?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "tune": {}, "downstream": [*tasks]})
    for width, tokens, seed in product((32, 64, 160), (1e6, 4e6), (0, 1)):
        add_run(folder, run_config(1, width, seed=seed, tokens=tokens))
    folder.write_ledger()
    add_scores(folder, tasks)
    evidence = evidence_of(folder)
    assert evidence.downstream is not None
    assert evidence.downstream.average is not None
    best = evidence.downstream.average.best["score"]
    assert f"highest on 2 of 2 tasks, with {best:.3f} (" in verdict_of(evidence).sentence
    assert " against " not in verdict_of(evidence).sentence


def test_starts_whose_best_has_no_bracketed_rate_are_judged_by_the_best_that_is_compared(tmp_path: Path) -> None:
    """And never by a word order that was read."""
    start = "../runs/0123456789abcdef"
    rates = {"recipe.learning_rate": {"low": 1e-3, "high": 4e-3, "trials": 3}}
    shapes = {"grid": {"depth": [1], "width": [64]}}
    sweep = {"question": "Cut or train again?", "shapes": shapes, "budgets": {"tokens": [1e6, 4e6]}, "tune": rates}
    folder = sweep_folder(tmp_path / "s", SWEEP | sweep | {"vary": {"recipe.start": ["fresh", start]}})

    def nats(config: RunConfig) -> float:
        cut, longer = config.recipe.init_from is not None, config.tokens > 2e6
        away = np.log(config.recipe.learning_rate / (8e-3 if cut and longer else 2e-3))
        return float(5 - 0.3 * cut - 0.6 * longer + 0.15 * away**2)

    for tokens, begun, rate, seed in product((1e6, 4e6), ("fresh", start), (1e-3, 2e-3, 4e-3), range(3)):
        config = run_config(1, 64, rate, seed=seed, tokens=tokens, start=begun)
        add_run(folder, config, Losses(nats=nats), flops_before=None if begun == "fresh" else 1e12)
    sentence = verdict_of(evidence_of(folder)).sentence
    assert "word order" not in sentence
    assert re.match(
        r"An encoder continued for 1M tokens is 0\.\d+ nats .* below one trained from scratch for 1M tokens", sentence
    )


def test_text_without_a_limit_is_new_text(tmp_path: Path) -> None:
    values = [None, 5e5, 1e5]
    configs = [run_config(1, 64, unique_tokens=tokens) for tokens in values]
    vary = {"recipe.unique_tokens": ["none", 5e5, 1e5]}
    evidence = asked(
        tmp_path / "s", "How often may a text be read?", configs, lambda config: 5 + 0.4 * (config.recipe.unique_tokens == 1e5),
        vary=vary,
    )  # fmt: skip
    evidence = gather(evidence.folder, include_unbracketed=True)
    assert evidence.cells[0].setting == "unique_tokens=none"
    sentence = verdict_of(evidence).sentence
    assert "nan" not in sentence
    assert re.match(r"2 passes over a text cost no significant loss beside new text, .*10 passes cost 0\.\d+ nats", sentence)


def test_tables_are_compared_where_they_differ(tmp_path: Path) -> None:
    """Depth beside a larger FFN at one width."""
    layers = [(1, 640), (2, 256)]
    shapes = {"list": [{"depth": depth, "width": 64, "ffn": ffn} for depth, ffn in layers]}
    configs = [reshaped(run_config(depth, 64), ffn=ffn) for depth, ffn in layers]
    evidence = asked(
        tmp_path / "s", "Depth or FFN?", configs, lambda config: 4 + 0.2 * (config.architecture.depth > 1), shapes=shapes
    )
    evidence = gather(evidence.folder, include_unbracketed=True)
    assert evidence.comparisons.pairs
    assert not any("embedding tables" in line for line in undecided(evidence))


def test_cuts_are_those_at_the_largest_budget(tmp_path: Path) -> None:
    """Also if fewer layers were cut there; at the smaller budget one cell is missing."""
    start = "../runs/0123456789abcdef"
    configs = [
        run_config(depth, 64, tokens=tokens, start=start)
        for depth, tokens in product((4, 3, 2), (1e6, 4e6))
        if (depth, tokens) != (3, 1e6)
    ]

    def nats(config: RunConfig) -> float:
        return 5 - 0.2 * config.architecture.depth - 0.5 * (config.tokens > 2e6)

    shapes, vary = {"grid": {"depth": [4, 3, 2], "width": [64]}}, {"recipe.start": ["fresh", start]}
    evidence = asked(tmp_path / "s", "What does cutting layers cost?", configs, nats, shapes=shapes, vary=vary)
    evidence = gather(evidence.folder, include_unbracketed=True)
    cells = tuple(replace(cell, layers_cut=4 - cell.architecture.depth) for cell in evidence.cells)
    sentence = verdict_of(replace(evidence, cells=cells)).sentence
    assert re.search(r"costs at least 0\.[12]\d\d nats \(.*\) for 1 layer and 0\.[34]\d\d nats \(.*\) for 2 layers", sentence)


def test_the_cells_that_a_shape_dominates_are_listed_by_how_far(tmp_path: Path) -> None:
    widths = (32, 48, 64, 96, 128, 160)
    evidence = asked(
        tmp_path / "s", "Which width?", [run_config(1, width) for width in widths],
        lambda config: 4 + 0.1 * widths.index(config.architecture.width),
    )  # fmt: skip
    lines = dominance_sentences(gather(evidence.folder, include_unbracketed=True))
    assert [re.match(r"L1-H(\d+)", line)[1] for line in lines[:-1]] == ["160", "128", "96"]  # type: ignore[index]
    assert lines[-1] == "So are 2 more cells."


def test_rates_of_shapes_are_named_from_the_smallest_to_the_largest(tmp_path: Path) -> None:
    """Though a budget in FLOPs gives the smallest the most tokens."""
    folder = sweep_folder(
        tmp_path / "s", SWEEP | {"question": "How does the learning rate move?", "budgets": {"flops": [1e12]}}
    )
    for width, rate in product((32, 64, 128), (1e-3, 2e-3, 4e-3)):
        values = run_config(1, width, rate).to_dict()
        config = RunConfig.parse(values | {"recipe": values["recipe"] | {"budget": {"flops": 1e12}}})
        add_run(folder, config, Losses(nats=lambda config: float(4 + 0.15 * np.log(config.recipe.learning_rate / 2e-3) ** 2)))
    assert verdict_of(evidence_of(folder)).sentence.startswith("Over 3 shapes from L1-H32-A2-F128 to L1-H128-A2-F512, ")
