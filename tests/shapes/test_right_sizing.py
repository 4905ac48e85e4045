"""Every shape that is returned counts to what was asked, and what cannot be reached names what can."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from study.base.errors import InputError
from study.benching.forward_passes import hardware_environment
from study.cli import commands
from study.config.presets import kind as preset_or_model
from study.counting.architecture import Architecture, changed, unbuildable
from study.counting.latency import TIMES, fit_latency, read_table, write_table
from study.counting.memory import WeightFormat, encoder_bytes, inference_memory, memory_of
from study.counting.parameters import flops_per_token, parameters
from study.shapes.right_sizing import UNRANKED, ShapeQuery, Solved
from tests.counting.test_latency import synthetic_table
from tests.synthetic import depth_or_width

NON_EMBEDDING = {"parameters": "parameters_non_embedding"}


@pytest.fixture(scope="module")
def latency_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("latency")
    write_table(synthetic_table(), hardware_environment("cpu"), root)
    return root


def write_law(path: Path, **law: Any) -> Path:
    path.write_text(json.dumps(law))
    return path


def reachable(otherwise: str, **question: Any) -> tuple[Architecture, ...]:
    """The shapes that answer a question; none where it is refused, which must say `otherwise`."""
    try:
        return ShapeQuery(**question).answer().shapes
    except InputError as error:
        refusal = str(error)
    assert otherwise in refusal
    return ()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"parameters": "10M"}, "all shapes within 2% of 10M parameters_non_embedding ("),
        ({"parameters": "10M", "convention": "parameters_encoder"}, "all shapes within 2% of 10M parameters_encoder ("),
        ({"memory": "200MB", "train_flops": "60M"}, "under 60M train_flops a token and 200 MB of memory ("),
    ],
)
def test_amounts_are_written_with_the_names_of_their_conventions(asked: dict[str, Any], expected: str) -> None:
    assert expected in ShapeQuery(**asked).answer().question


CONVENTIONS = st.sampled_from(["parameters", "parameters_encoder", "parameters_non_embedding"])


@pytest.mark.slow
@settings(max_examples=40)
@given(
    millions=st.floats(0.5, 300),
    convention=CONVENTIONS,
    tolerance=st.sampled_from([0.005, 0.02, 0.1]),
    head_width=st.sampled_from([32, 64, 128]),
    ffn_ratio=st.sampled_from([1.0, 2.7, 4.0]),
)
def test_every_shape_has_the_parameters_asked_for(
    millions: float, convention: str, tolerance: float, head_width: int, ffn_ratio: float
) -> None:
    asked = f"{millions:.3f}M"
    rules: dict[str, Any] = {"head_width": head_width, "ffn_ratio": ffn_ratio}
    options: dict[str, Any] = {"depth": "1:12", "convention": convention, "tolerance": tolerance} | rules
    for shape in reachable("the nearest", parameters=asked, **options):
        rebuilt = Architecture.parse(shape.model_dump())
        count = parameters(rebuilt).totals()[convention]
        assert abs(count / (float(asked[:-1]) * 1e6) - 1) <= tolerance
        assert rebuilt.width % 64 == 0
        assert 1 <= rebuilt.depth <= 12
        assert rebuilt.ffn == round(ffn_ratio * rebuilt.width)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    megabytes=st.integers(5, 3000),
    megaflops=st.integers(1, 3000),
    memory=st.sampled_from(["inference", "training"]),
    batch=st.sampled_from([1, 32]),
    precision=st.sampled_from(["fp32", "bf16"]),
)
def test_every_shape_is_under_all_budgets_and_the_next_wider_is_not(
    megabytes: int, megaflops: int, memory: str, batch: int, precision: Any
) -> None:
    options: dict[str, Any] = {"memory_of": memory, "batch": batch, "precision": precision, "depth": "1:8", "width": "64:1024"}
    solved = reachable("no shape stays under", memory=f"{megabytes}MB", train_flops=f"{megaflops}M", **options)

    def fits(shape: Architecture) -> bool:
        needed = memory_of(shape, batch, 128, precision)[memory].total
        return needed <= megabytes * 10**6 and flops_per_token(shape, 128, 19)["train_flops"] <= megaflops * 1e6

    for shape in solved:
        wider = shape.width + 64
        assert fits(shape)
        sizes = {"width": wider, "heads": wider // 64, "ffn": 4 * wider}
        assert wider > 1024 or not fits(shape.model_copy(update=sizes))


def test_widths_are_multiples_of_a_head_width_that_is_asked_for() -> None:
    solved = ShapeQuery(parameters="10M", head_width=96, tolerance=0.2).answer()
    assert solved.shapes
    assert {shape.head_width for shape in solved.shapes} == {96}
    assert "in multiples of 192" in solved.question
    assert "in multiples of 32" in ShapeQuery(parameters="10M", width_multiple=32).answer().question


def test_latency_is_that_of_the_table_s_model(latency_folder: Path) -> None:
    solved = ShapeQuery(memory="200MB", latency="10ms", latency_table=latency_folder, depth="1:12").answer()
    model = fit_latency(synthetic_table(), "fp32", setting=(1, 128))
    assert solved.latency is not None
    assert all(model.seconds(shape, 1, 128) <= 0.01 * (1 + 1e-5) for shape in solved.shapes)
    assert "each shape left out in turn" in solved.to_text()
    measured = ShapeQuery(latency="10ms", latency_table=latency_folder, depth="2:12", width="128:512", under=True).answer()
    assert not any("extrapolated" in note for note in measured.notes)
    deeper = ShapeQuery(latency="30ms", latency_table=latency_folder, depth="12:13", width="128:512", under=True).answer()
    assert deeper.notes[-1] == (
        "latency is extrapolated for 1 of 2 shapes, beyond what that error covers: it was measured at depth 2 to 12"
    )
    factorised = ShapeQuery(latency="30ms", latency_table=latency_folder, depth="12", width="128:512", under=True,
                            embedding_width=64).answer()  # fmt: skip
    assert factorised.notes[-1].endswith(
        "for 1 of 1 shape, beyond what that error covers: it was measured at BERT's embedding width"
    )
    longer = ShapeQuery(latency="2s", latency_table=latency_folder, depth="2:12", width="128:512", under=True, ffn_ratio=2.0,
                        sequence_length=512, batch=64, head_width=32).answer()  # fmt: skip
    assert longer.notes[-1].startswith("latency is extrapolated for ")
    assert "FFN ratio 4, head width 64, batch " in longer.notes[-1]
    contour = ShapeQuery(latency="10ms", latency_table=latency_folder, tolerance=0.05).answer()
    assert all(abs(model.seconds(shape, 1, 128) / 0.01 - 1) <= 0.0501 for shape in contour.shapes)


def int8_folder(root: Path) -> Path:
    """Times of fp32, and of int8 that takes two thirds of them."""
    table = synthetic_table()
    seconds = {name: table[name] * 2 / 3 for name in ("median_seconds", "p95_seconds", "fastest_seconds")}
    write_table(pd.concat([table, table.assign(precision="int8", **seconds)]), hardware_environment("cpu"), root)
    return root


def test_an_encoder_for_a_phone_is_larger_in_int8(tmp_path: Path) -> None:
    """25 MB and 20 ms: int8 affords about four times the weights, and its times are its own."""
    asked: dict[str, Any] = {"size": "25MB", "latency": "20ms", "latency_table": int8_folder(tmp_path), "depth": "2:12"}
    plain, small = ShapeQuery(**asked).answer(), ShapeQuery(**asked, precision="int8").answer()
    counted: list[tuple[Solved, WeightFormat]] = [(plain, "fp32"), (small, "int8")]
    for solved, precision in counted:
        for row, shape in zip(solved.to_dict()["shapes"], solved.shapes, strict=True):
            assert row["weights_bytes"] == encoder_bytes(shape, precision) <= 25e6
            assert row["latency_seconds"] <= 0.02 * (1 + 1e-5)
    most = [max(parameters(shape).parameters_encoder for shape in solved.shapes) for solved in (plain, small)]
    assert most[0] < 25e6 / 4 < 2 * most[0] < most[1] < 25e6
    assert small.latency is not None
    assert small.latency.precision == "int8"
    assert "size: the encoder's weights in int8" in small.to_text()
    with pytest.raises(InputError, match=r"has no times in bf16; it has .*; measure them with study latency --precision bf16"):
        ShapeQuery(**asked, precision="bf16").answer()
    with pytest.raises(InputError, match="int8 is for inference"):
        ShapeQuery(memory="1GB", memory_of="training", precision="int8").answer()


def test_a_box_that_triages_documents_gets_the_smallest_shape_of_a_score(tmp_path: Path) -> None:
    """The score is the goal; the law is what study score-law prints, and ranks."""
    steps = {
        "loss": {"law": "power-floor", "estimates": {"E": 1.5, "A": 400, "alpha": 0.34}, "columns": NON_EMBEDDING},
        "score": {"law": "score-of-loss", "estimates": {"chance": 0.5, "ceiling": 0.95, "k": 2.0, "L0": 3.0}},
    }
    path = write_law(tmp_path / "y.json", two_steps=steps)
    box: dict[str, Any] = {"score_law": path, "sequence_length": 512, "batch": 32, "depth": "1:12"}
    solved = ShapeQuery(score=0.8, **box).answer()
    rows = solved.to_dict()["shapes"]
    assert [row["parameters"] for row in rows] == sorted(row["parameters"] for row in rows)
    assert len({row["depth"] for row in rows}) == len(rows), "one a depth"
    for row, shape in zip(rows, solved.shapes, strict=True):
        loss = 1.5 + 400 / parameters(shape).parameters_non_embedding ** 0.34
        assert row["score"] == pytest.approx(0.5 + 0.45 / (1 + math.exp(2 * (loss - 3))))
        assert row["score"] >= 0.8
    budget = ShapeQuery(score=0.8, memory="2GB", under=True, **box).answer().to_dict()["shapes"]
    scores = [row["score"] for row in budget]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(InputError, match=r"--score: no such shape reaches 0\.94; the best, L.*, reaches 0\.[0-8]"):
        ShapeQuery(score=0.94, memory="500MB", under=True, **box).answer()
    with pytest.raises(InputError, match="only applies with --score-law; give that too"):
        ShapeQuery(score=0.8).answer()


def test_a_multilingual_router_under_a_memory_cap_has_narrow_tables() -> None:
    """250,000 pieces leave no room for layers at 300 MB, but with tables of 128 numbers."""
    asked: dict[str, Any] = {"memory": "300MB", "under": True, "vocabulary": 250_000, "depth": "1:12"}
    wide, narrow = ShapeQuery(**asked).answer(), ShapeQuery(**asked, embedding_width=128).answer()
    most = [max(parameters(shape).parameters_non_embedding for shape in solved.shapes) for solved in (wide, narrow)]
    assert most[1] > 4 * most[0]
    assert all(inference_memory(shape, 1, 128).total <= 300e6 for shape in narrow.shapes)
    assert {shape.table_width for shape in narrow.shapes} == {128}


def test_without_a_law_no_shape_is_recommended_and_named_models_are_marked(tmp_path: Path) -> None:
    solved = ShapeQuery(parameters="86M", tolerance=0.02).answer()
    assert UNRANKED in solved.notes
    marked = {row["shape"]: row["named"] for row in solved.to_dict()["shapes"] if row["named"]}
    assert marked == {"L12-H768-A12-F3072": "bert-base"}
    assert "L12-H768-A12-F3072  bert-base  " in solved.to_text()
    path = write_law(tmp_path / "y.json", law="power", estimates={"A": 2, "alpha": 0.3})
    assert UNRANKED not in ShapeQuery(parameters="86M", law=path).answer().notes


def test_a_machine_that_was_not_measured_goes_by_the_committed_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"latency": "20ms", "under": True, "depth": "2:8"}
    solved = ShapeQuery(**asked).answer()
    assert any("this machine was not measured, so by the table in results/reference/latency" in note for note in solved.notes)
    write_table(synthetic_table(), hardware_environment("cpu"), tmp_path / "results" / "latency")
    own = ShapeQuery(**asked).answer()
    assert not any("was not measured" in note for note in own.notes)
    assert own.latency != solved.latency


def test_a_law_puts_the_lowest_loss_first(tmp_path: Path) -> None:
    path = write_law(
        tmp_path / "y.json",
        law="power-floor",
        columns={"parameters": "parameters_non_embedding"},
        estimates={"E": 1.5, "A": 400, "alpha": 0.34},
        intervals={"alpha": [0.3, 0.4]},
    )
    solved = ShapeQuery(memory="100MB", law=path, under=True).answer()
    losses = [row["loss_nats"] for row in solved.to_dict()["shapes"]]
    assert losses == sorted(losses)
    first = solved.shapes[0]
    assert losses[0] == pytest.approx(1.5 + 400 / parameters(first).parameters_non_embedding ** 0.34)


def test_a_chinchilla_law_needs_tokens(tmp_path: Path) -> None:
    estimates = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}
    path = write_law(
        tmp_path / "y.json", law="chinchilla", columns={"parameters": "parameters_non_embedding"}, estimates=estimates
    )
    solved = ShapeQuery(parameters="10M", law=path, tokens="1B").answer()
    count = parameters(solved.shapes[0]).parameters_non_embedding
    assert solved.to_dict()["shapes"][0]["loss_nats"] == pytest.approx(1.69 + 406.4 / count**0.34 + 410.7 / 1e9**0.28)
    with pytest.raises(InputError, match="--tokens"):
        ShapeQuery(parameters="10M", law=path).answer()


@pytest.mark.slow
def test_what_a_fit_prints_is_what_shapes_read(tmp_path: Path) -> None:
    rows = ["N,D,loss"]
    for size in (1e6, 3e6, 1e7, 3e7, 1e8):
        rows += [f"{size},{tokens},{1.7 + 400 * size**-0.34 + 410 * tokens**-0.28}" for tokens in (1e8, 1e9, 1e10)]
    (tmp_path / "runs.csv").write_text("\n".join(rows).replace("N,", "parameters_encoder,"))
    arguments = ["fit", str(tmp_path / "runs.csv"), "--law", "chinchilla", "--parameters", "parameters_encoder"]
    result = CliRunner().invoke(commands, [*arguments, "--tokens", "D", "--loss", "loss", "--bootstrap", "0", "--json"])
    assert result.exit_code == 0, result.output
    (tmp_path / "y.json").write_text(result.output)
    solved = ShapeQuery(parameters="10M", law=tmp_path / "y.json", tokens="1B").answer()
    count = parameters(solved.shapes[0]).parameters_encoder
    loss = solved.to_dict()["shapes"][0]["loss_nats"]
    assert loss == pytest.approx(1.7 + 400 * count**-0.34 + 410 * 1e9**-0.28, rel=1e-4)


def test_what_the_n_of_a_foreign_law_counts_is_said_beside_it(tmp_path: Path) -> None:
    path = write_law(tmp_path / "y.json", law="power", columns={"parameters": "Model Size"}, estimates={"A": 2, "alpha": 0.3})
    for convention, count in parameters(ShapeQuery(parameters="10M").answer().shapes[0]).totals().items():
        result = CliRunner().invoke(
            commands, ["shapes", "--parameters", "10M", "--law", str(path), "--law-convention", convention, "--json"]
        )
        assert result.exit_code == 0, result.output
        losses = {row["shape"]: row["loss_nats"] for row in json.loads(result.output)["shapes"]}
        shape = ShapeQuery(parameters="10M").answer().shapes[0].shape_name
        assert losses[shape] == pytest.approx(2 * count**-0.3), convention
    own = write_law(
        tmp_path / "x.json", law="power", columns={"parameters": "parameters_encoder"}, estimates={"A": 2, "alpha": 0.3}
    )
    with pytest.raises(InputError, match="is parameters_encoder, and --law-convention says parameters; leave the option out"):
        ShapeQuery(parameters="10M", law=own, law_convention="parameters").answer()


def test_a_law_that_is_weakly_identified_is_used_with_a_note(tmp_path: Path) -> None:
    actual = {"law": "power", "estimates": {"A": 2, "alpha": 0.3}, "status": "weakly_identified", "reasons": ["alpha is wide"]}
    (tmp_path / "y.json").write_text(json.dumps(actual))
    notes = ShapeQuery(parameters="10M", law=tmp_path / "y.json").answer().notes
    assert "loss: power is weakly identified (alpha is wide)" in notes
    (tmp_path / "y.json").write_text(json.dumps(actual | {"status": "converged"}))
    assert not any(note.startswith("loss:") for note in ShapeQuery(parameters="10M", law=tmp_path / "y.json").answer().notes)


def test_what_a_law_was_not_fitted_to_is_said(tmp_path: Path) -> None:
    path = write_law(
        tmp_path / "y.json",
        law="chinchilla",
        columns={"parameters": "parameters_non_embedding"},
        estimates={"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
        warnings=["loss: looks like bits"],
        ranges={"parameters": [1e6, 2e7], "tokens": [1e6, 2e7]},
    )
    solved = ShapeQuery(parameters="30M", law=path, tokens="100B", tolerance=0.1).answer()
    shapes = len(solved.shapes)
    assert solved.notes[1:] == (
        "loss: chinchilla was fitted with a warning: loss: looks like bits",
        f"loss: chinchilla is extrapolated for {shapes} of {shapes} shapes: it was fitted to parameters of 1.0M to 20.0M",
        f"loss: chinchilla is extrapolated for {shapes} of {shapes} shapes: it was fitted to tokens of 1.0M to 20.0M",
    )
    assert not any("extrapolated" in note for note in ShapeQuery(parameters="10M", law=path, tokens="10M").answer().notes)


@pytest.mark.slow
def test_a_law_of_another_vocabulary_is_said_to_be_so(tmp_path: Path) -> None:
    """The sweep's 2,048 pieces stand in its ledger, the file of its law takes them along, and 30,522 are no comparison."""
    folder = depth_or_width(tmp_path / "s", seeds=1, budgets=(1e6, 2e6, 4e6))
    folder.write_ledger()
    result = CliRunner().invoke(commands, ["fit", str(folder.path), "--law", "chinchilla", "--bootstrap", "40", "--json"])
    assert result.exit_code == 0, result.output
    (tmp_path / "y.json").write_text(result.output)
    asked: dict[str, Any] = {"parameters": "100k", "law": tmp_path / "y.json", "tokens": "2M", "tolerance": 0.9}
    asked |= {"width": "32:128", "width_multiple": 32, "head_width": 32}
    note = (
        "loss: chinchilla was fitted to runs of vocabulary 2,048, and these shapes have 30,522; losses over other vocabularies "
        "are not comparable: give --vocabulary 2048"
    )
    assert note in ShapeQuery(**asked).answer().notes
    assert not any("vocabulary" in line for line in ShapeQuery(**asked, vocabulary=2048).answer().notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON: it is nested too deeply"),
        ('{"law": "power", "law": "chinchilla"}', "is not JSON: the key 'law' appears twice"),
        ("[1]", "holds no keys and values"),
        ("{}", "holds no law"),
        ('{"law": "powr"}', "y.json: 'powr' is not a known law; did you mean 'power'?"),
        ('{"law": "power", "estimates": {"A": "much", "alpha": 0.3}}', "estimates.A: is 'much', not a number"),
        ('{"law": "power", "estimates": {"A": 2, "alpha": 1}, "ranges": {"parameters": 3}}', "ranges.parameters: "),
        ('{"law": "flops", "estimates": {"C": 2, "gamma": 0.3}}', "flops needs flops, which a shape does not have"),
        ('{"law": "score-of-loss", "estimates": {}}', "predicts the score, not the loss"),
        (
            '{"law": "power", "estimates": {"A": 2, "alpha": 0.3}, "status": "failed", "reasons": ["no fit met another"]}',
            "holds a fit of power that failed (no fit met another); fit another law, or more runs",
        ),
        (
            '{"law": "power", "estimates": {"A": 2, "alpha": 0.3}, "status": "on_bound", "reasons": ["alpha is 0"]}',
            "holds a fit of power that ended on a bound (alpha is 0)",
        ),
        (
            '{"law": "power", "columns": {"parameters": "Model Size"}, "estimates": {"A": 2, "alpha": 0.3}}',
            "columns.parameters: 'Model Size' is none of parameters, parameters_encoder, parameters_non_embedding; name",
        ),
    ],
)
def test_other_laws_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "y.json").write_text(content)
    with pytest.raises(InputError) as refused:
        ShapeQuery(parameters="10M", law=tmp_path / "y.json").answer()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "place", "message"),
    [
        ([], "--parameters", "no amount is given"),
        (["--parameters", "10M", "--tolerance", "1e-7"], "--parameters", "the nearest, L8-H320-A5-F1280, has 9.86M (-1.36%)"),
        (["--parameters", "lots"], "--parameters", "'lots' is not a count"),
        (["--memory", "200"], "--memory", "with its unit"),
        (["--memory", "1MB", "--under"], "--memory", "the smallest, L1-H64-A1-F256, has 8.47 MB"),
        (["--parameters", "10M", "--width", "65:100"], "--width", "no multiple of 64 lies in the range"),
        (["--memory", "1GB", "--under", "--width", "65:100"], "--width", "no multiple of 64"),
        (["--parameters", "10M", "--depth", "4:2"], "--depth", "write the smaller number first"),
        (["--parameters", "10M", "--sequence-length", "600"], "--sequence-length", "exceeds --positions 512"),
        (["--latency", "10ms", "--latency-table", "/nowhere"], "/nowhere", "study latency --models"),
        (["--parameters", "10M", "--depth", "1:999999999"], "--depth, --width", "hold 31,999,999,968 shapes"),
        (["--parameters", "10M", "--tokens", "1B"], "--tokens", "only applies with --law or --score-law; give that too"),
        (["--parameters", "10M", "--law-convention", "parameters"], "--law-convention", "only applies with --law"),
        (["--memory", "1GB", "--threads", "2"], "--threads", "only applies with --latency"),
        (["--parameters", "10M", "--latency-table", "nope"], "--latency-table", "only applies with --latency"),
        (["--parameters", "10M", "--latency-statistic", "p95"], "--latency-statistic", "only applies with --latency"),
        (["--memory", "1GB", "--convention", "parameters_encoder"], "--convention", "only applies with --parameters"),
        (["--parameters", "10M", "--under", "--tolerance", "0.5"], "--tolerance", "only applies to a single amount"),
        (["--parameters", "10M", "--memory", "1GB", "--tolerance", "0.5"], "--tolerance", "only applies to a single amount"),
        (["--score", "0.8", "--score-law", "y", "--tolerance", "0.5"], "--tolerance", "only applies to a single amount"),
        (["--score", "0.8", "--score-law", "y", "--under"], "--under", "only applies with an amount"),
    ],
)
def test_bad_questions_are_refused(options: list[str], place: str, message: str) -> None:
    result = CliRunner().invoke(commands, ["shapes", *options])
    assert isinstance(result.exception, InputError)
    assert result.exception.problems[0].place == place
    assert message in result.exception.problems[0].message


def test_the_command_prints_a_table_and_json() -> None:
    text = CliRunner().invoke(commands, ["shapes", "--parameters", "10M"], catch_exceptions=False).output
    assert "L8-H320-A5-F1280" in text
    printed = CliRunner().invoke(commands, ["shapes", "--parameters", "10M", "--json"], catch_exceptions=False).output
    assert [row["shape"] for row in json.loads(printed)["shapes"]] == ["L2-H640-A10-F2560", "L8-H320-A5-F1280"]


KINDS: dict[str, dict[str, Any]] = {
    "modern": {"position_encoding": "rotary", "distance_bias": "learned"},
    "albert-base": {"embedding_width": 128, "layer_groups": 1},
    "modernbert-base": {"activation": "geglu", "norm_kind": "layer", "attention_window": 128},
    "mobilebert": {"bottleneck_width": 128, "ffn_stack": 4},
    "deberta-v3-base": {"position_encoding": "disentangled_shared", "relative_positions": 512},
    "neobert": {"norm_kind": "rms", "activation": "swiglu"},
    "esm2-8m": {"norm": "pre", "segments": 0, "contact_head": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_of_any_kind_are_found_by_their_own_counts(kind: str) -> None:
    """Each can be built, and has the ratio of ffn to width of its kind."""
    its = preset_or_model(kind, "--kind")
    solved = ShapeQuery(parameters="3M", kind=kind, tolerance=0.2, depth="2:8", width="64:768").answer()
    assert solved.shapes
    assert f", like {kind} (depths" in solved.question
    for shape in solved.shapes:
        assert unbuildable(changed(shape, {})) is None
        assert {name: getattr(shape, name) for name in KINDS[kind]} == KINDS[kind]
        assert parameters(shape).parameters_non_embedding == pytest.approx(3e6, rel=0.2)
        assert shape.ffn / shape.width == pytest.approx(its.ffn / its.width, rel=0.01)


def test_a_named_model_is_marked_among_shapes_of_its_own_kind_alone() -> None:
    sizes: dict[str, Any] = {"depth": "22", "width": "768", "tolerance": 0.99, "parameters": "100M"}
    assert ShapeQuery(kind="modernbert-base", **sizes).answer().to_dict()["shapes"][0]["named"] == "modernbert-base"
    assert ShapeQuery(kind="modern", ffn_ratio=1.5, **sizes).answer().to_dict()["shapes"][0]["named"] is None


def test_latency_of_a_kind_is_predicted_from_its_own_times_where_there_are_enough(tmp_path: Path) -> None:
    """Twice as slow as BERT's: three shapes of the kind show it, two leave BERT's times, and a note that it is unlike them."""
    berts, slower = synthetic_table(), synthetic_table(kind="modern")
    slower[list(TIMES)] *= 2
    query: dict[str, Any] = {"latency": "20ms", "kind": "modern", "depth": "2:12", "width": "128:512", "under": True}
    write_table(pd.concat([berts, slower]), hardware_environment("cpu"), tmp_path / "both")
    few = slower[slower["shape"].isin(sorted(slower["shape"].unique())[:2])]
    write_table(pd.concat([berts, few]), hardware_environment("cpu"), tmp_path / "few")
    both, alone = (ShapeQuery(latency_table=tmp_path / name, **query).answer() for name in ("both", "few"))
    assert both.latency is not None
    assert alone.latency is not None
    shape = both.shapes[0]
    assert both.latency.seconds(shape, 1, 128) == pytest.approx(2 * alone.latency.seconds(shape, 1, 128), rel=0.15)
    assert any("with position_encoding rotary, distance_bias learned" in note for note in both.notes)
    assert not any("BERT's position encoding" in note for note in both.notes)
    assert any("BERT's position encoding, distance bias" in note for note in alone.notes)


def test_the_shipped_table_has_times_of_several_kinds_in_both_formats() -> None:
    shipped = read_table(Path(__file__).resolve().parents[2] / "results" / "reference" / "latency")
    for kind in ("bert", "modern", "albert-base", "modernbert-base"):
        wanted = preset_or_model(kind, "--kind")
        for precision in ("fp32", "int8"):
            model = fit_latency(shipped, precision, kind=wanted)
            assert not {*model.beyond(wanted, 1, 128)} - {"depth", "width"}, kind
            assert model.error < 0.2


def test_kinds_without_a_possible_shape_say_why() -> None:
    query: dict[str, Any] = {"parameters": "10M", "width": "64:512"}
    message = (
        r"no shape of this kind is possible \(depths 1 to 1, .*convolution_kernel 3 stands beside the first of several blocks"
    )
    for under in (False, True):
        with pytest.raises(InputError, match=message):
            ShapeQuery(kind="deberta-v2-xlarge", depth="1", under=under, **query).answer()
    with pytest.raises(InputError, match=r"--kind mobilbert: .*did you mean 'mobilebert'\?.* \(or a preset: bert, .*modern2\)"):
        ShapeQuery(kind="mobilbert", **query).answer()


def test_a_kind_whose_times_do_not_suffice_is_predicted_by_berts(tmp_path: Path) -> None:
    """Of one depth alone, or at other threads."""
    modern, berts = synthetic_table(kind="modern"), synthetic_table()
    wanted = preset_or_model("modern", "--kind")
    one_depth = pd.concat([berts, modern.assign(depth=2)])
    assert fit_latency(one_depth, "fp32", kind=wanted).unlike_bert == ""
    at_four = pd.concat([berts, berts.assign(threads=4), modern])
    assert fit_latency(at_four, "fp32", 4, kind=wanted).unlike_bert == ""
    assert fit_latency(at_four, "fp32", 2, kind=wanted).unlike_bert != ""
