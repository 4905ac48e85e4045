"""A compressed encoder is a run of no steps that is smaller, computes what it should, and serves as any other run does."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from study.base.errors import InputError
from study.benching.compression_table import paired_difference_of
from study.config.run_config import RunConfig
from study.config.score_config import Knobs
from study.counting.architecture import Architecture
from study.counting.memory import WeightFormat, model_bytes
from study.data.prepared import prepare
from study.model.encoder import Block, FeedForward
from study.model.masked_language_model import MaskedLanguageModel
from study.model.stored_weights import multiply_in_fp32, multiply_in_int8, restored, rounded, stored, trained_weights
from study.scoring.exporting import export
from study.scoring.pretrained import Pretrained
from study.store.ownership import Fenced
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.callbacks import Watchdog
from study.training.compressing import CompressionMethod, compress, compressed_config
from study.training.execution import Execution
from study.training.reshaping import CALIBRATION_TOKENS, shrunk
from study.training.trained_runs import starting_weights
from study.training.trainer import Training
from tests.small import SHARED, config, trained, write_corpus
from tests.synthetic_scores import TASKS, add_score
from tests.transformers_models import CLASSES

MODERN: dict[str, Any] = {"norm": "pre", "position_encoding": "rotary", "activation": "geglu", "tied_decoder": False}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compressing")
    write_corpus(folder / "text.txt")
    return folder


@pytest.fixture(scope="module", params=[({}, 100), pytest.param((MODERN, 200), marks=pytest.mark.slow)], ids=["bert", "modern"])
def source(request: pytest.FixtureRequest, place: Path) -> RunFolder:
    """An encoder that is trained until both of its layers lower the loss."""
    architecture, steps = request.param
    recipe = {"learning_rate": 0.01, "batch_tokens": 512, "budget": {"steps": steps}}
    return trained(place / "results" / "toy", config(place / "text.txt", architecture=architecture, recipe=recipe))


def made(source: RunFolder, place: Path, to: str) -> RunFolder:
    prepared = prepare(source.config().data)
    (run,) = compress(source, prepared, [CompressionMethod.parse(to)], SweepFolder(place / "small"), Execution())
    return run


def record_of(run: RunFolder) -> RunRecord:
    record = run.record()
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("to", "shape", "share"),
    [
        ("int8", "L2-H16-A2-F32", 0.5),
        ("bf16", "L2-H16-A2-F32", 0.6),
        ("prune=0.5", "L2-H16-A2-F16", 0.95),
        ("layers=1:last", "L1-H16-A2-F32", 0.9),
        ("factor=8", "L2-H16-A2-F32", 0.95),
        ("layers=1,prune=0.25,factor=8,int8", "L1-H16-A2-F24", 0.4),
    ],
)
def test_a_compression_is_a_run_of_no_steps_that_names_its_source(
    source: RunFolder, place: Path, to: str, shape: str, share: float
) -> None:
    run, before = made(source, place, to), record_of(source)
    record = record_of(run)
    assert (record.state, record.steps, record.train_flops) == ("COMPLETED", 0, 0.0)
    assert record.config.architecture.shape_name == shape
    assert record.config.recipe.init_from is not None
    assert record.config.recipe.init_from.folder.name == source.run_id
    assert record.spent_flops == before.train_flops, "what its source cost"
    assert record.validation_masked_tokens == before.validation_masked_tokens
    assert run.weights_file.stat().st_size < share * source.weights_file.stat().st_size
    assert record.loss_nats is not None
    assert before.loss_nats is not None
    difference, error = paired_difference_of(run, source)
    assert difference == pytest.approx(record.loss_nats - before.loss_nats, abs=1e-9)
    assert error is not None
    assert error > 0
    assert record.parameters == sum(tensor.numel() for tensor in trained_weights(run).values())
    again = made(source, place, to)
    assert again.path == run.path, "it is made once"
    assert record_of(again) == record


def test_rounding_and_half_the_neurons_cost_little_and_a_cut_more(source: RunFolder, place: Path) -> None:
    gains = {to: paired_difference_of(made(source, place, to), source)[0] for to in ("int8", "bf16", "prune=0.25", "layers=1")}
    assert abs(gains["bf16"]) < 0.01
    assert abs(gains["int8"]) < 0.05
    assert abs(gains["prune=0.25"]) < 0.1
    assert gains["layers=1"] > abs(gains["int8"])


def test_an_int8_run_multiplies_in_int8_wherever_it_predicts(source: RunFolder, place: Path, tmp_path: Path) -> None:
    run = made(source, place, "int8")
    tensors = safetensors.torch.load_file(run.weights_file)
    assert tensors["encoder.blocks.0.attention.output.weight"].dtype == torch.int8
    assert tensors["encoder.embeddings.token.weight"].dtype == torch.int8
    assert tensors["head.bias"].dtype == torch.float32
    model, tokens = Pretrained(run).masked_language_model(), torch.arange(32).view(2, 16)
    with torch.inference_mode():
        in_int8 = model(tokens)
        multiply_in_fp32(model)
        in_fp32 = model(tokens)
    assert 0 < (in_int8 - in_fp32).abs().max() < 0.2 * in_fp32.abs().max()
    further = made(run, place, "layers=1")
    assert record_of(further).config.recipe.weights == "int8", "what is not asked for stays"
    if record_of(source).config.architecture.norm == "post":
        export(Pretrained(run), tmp_path / "exported")
        exported = safetensors.torch.load_file(tmp_path / "exported" / "model.safetensors")
        assert exported["bert.embeddings.word_embeddings.weight"].dtype == torch.float32


def test_an_int8_run_goes_on_training_in_fp32_from_its_values(source: RunFolder, place: Path, tmp_path: Path) -> None:
    run = made(source, place, "int8")
    values = record_of(source).config.to_dict()
    values["recipe"] |= {"start": str(run.path), "budget": {"steps": 1}, "learning_rate": 1e-12, "warmup_fraction": 0.0}
    still = trained(tmp_path, RunConfig.parse(values))
    for name, tensor in trained_weights(run).items():
        torch.testing.assert_close(trained_weights(still)[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
def test_rounding_is_within_half_a_step_and_happens_once(form: WeightFormat) -> None:
    torch.manual_seed(0)
    weights = {
        "a.weight": torch.randn(5, 7),
        "b.bias": torch.randn(7),
        "c.weight": torch.randn(7),
        "d.weight": torch.zeros(2, 3),
    }
    once = rounded(weights, form)
    for name, tensor in rounded(once, form).items():
        torch.testing.assert_close(tensor, once[name], atol=1e-6, rtol=0)
    if form == "int8":
        step = weights["a.weight"].abs().amax(1, keepdim=True) / 127
        assert ((once["a.weight"] - weights["a.weight"]).abs() <= 0.5001 * step).all()
        assert torch.equal(once["b.bias"], weights["b.bias"])
        assert torch.equal(once["c.weight"], weights["c.weight"]), "the scales of a norm are no matrix"
        assert "a.weight" not in restored({"a.weight": torch.zeros(1, 1, dtype=torch.int8)}, form)


def test_products_of_int8_are_those_of_rounded_numbers() -> None:
    """A product of whole numbers up to 127 in both factors needs no rounding, even without VNNI."""
    torch.manual_seed(0)
    layer = FeedForward(Architecture(depth=1, width=16, heads=2, ffn=64, vocabulary=64)).inner
    weight = torch.randint(-127, 128, tuple(layer.weight.shape)).float()
    weight[:, 0] = 127
    x = torch.randint(0, 128, (40, 16)).float()
    x[0, 0], x[0, 1] = 0, 127
    layer.weight.data.copy_(weight)
    with torch.inference_mode():
        exact = layer(x)
        multiply_in_int8(layer)
        torch.testing.assert_close(layer(x), exact, atol=0.5, rtol=0)


@pytest.mark.parametrize("transform", ["embedding_width", "none"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_decoder_multiplies_in_int8_too(tied: bool, transform: str) -> None:
    sizes = {"depth": 1, "width": 16, "heads": 2, "ffn": 32, "vocabulary": 50, "positions": 16}
    model = MaskedLanguageModel(Architecture.parse(sizes | {"tied_decoder": tied, "mlm_transform": transform}))
    table_VxH = model.encoder.embeddings.token.weight
    with torch.inference_mode():
        hidden = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
        exact = model.head(hidden, table_VxH)
        multiply_in_int8(model)
        actual = model.head(hidden, table_VxH)
    assert not torch.equal(actual, exact)
    torch.testing.assert_close(actual, exact, atol=0.05, rtol=0)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
def test_bytes_of_weights_are_counted_in_closed_form(name: str, form: WeightFormat) -> None:
    sizes = {"depth": 2, "width": 16, "heads": 2, "ffn": 32, "vocabulary": 50, "positions": 16}
    architecture = Architecture.parse(sizes | CLASSES[name])
    weights = dict(MaskedLanguageModel(architecture).named_parameters())
    held = sum(tensor.numel() * tensor.element_size() for tensor in stored(weights, form).values())
    assert held == model_bytes(architecture, form)


def test_tables_of_full_rank_but_one_are_exact_in_the_encoder(place: Path) -> None:
    """Where no row leaves the kept directions, norm, scales and bias of the narrow tables are those of the wide ones."""
    values = config(place / "text.txt", architecture={"embedding_width": 12})
    given = values.architecture.model_copy(update={"embedding_width": None})
    model = MaskedLanguageModel(given, seed=3)
    torch.manual_seed(1)
    directions = torch.randn(6, 16)
    with torch.no_grad():
        for table in (model.encoder.embeddings.token, model.encoder.embeddings.position, model.encoder.embeddings.segment):
            assert table is not None
            table.weight.copy_(torch.randn(len(table.weight), 6) @ directions + torch.randn(len(table.weight), 1))
        for vector in (model.encoder.embeddings.norm.weight, model.encoder.embeddings.norm.bias):
            assert isinstance(vector, torch.Tensor)
            vector.copy_(torch.randn(16))
    narrow = MaskedLanguageModel(values.architecture)
    narrow.load_state_dict(shrunk(model.state_dict(), given, values, prepare(values.data)))
    tokens = torch.randint(0, 200, (4, 16))
    torch.testing.assert_close(narrow.encoder(tokens), model.encoder(tokens), atol=1e-4, rtol=1e-4)


def test_neurons_that_never_fire_are_left_out_without_a_trace(place: Path) -> None:
    """A neuron whose output is constant is its mean, which the bias takes over."""
    values = config(place / "text.txt", architecture={"ffn": 24})
    given = values.architecture.model_copy(update={"ffn": 32})
    model = MaskedLanguageModel(given, seed=3).eval()
    with torch.no_grad():
        for block in model.encoder.blocks:
            assert isinstance(block, Block)
            block.feed_forward.inner.weight[4:12] = 0
            block.feed_forward.inner.bias[4:12] = 3.0
    pruned = MaskedLanguageModel(values.architecture).eval()
    pruned.load_state_dict(shrunk(model.state_dict(), given, values, prepare(values.data)))
    tokens = torch.randint(0, 200, (4, 16))
    torch.testing.assert_close(pruned(tokens), model(tokens), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("int4", "int4 is not known; torch has no fast products of int4 on a CPU; give int8"),
        ("heads=1", "heads cannot be left out alone"),
        ("much", "much is not known; known: int8 "),
        ("", "is empty; known: int8 "),
        ("prune=1", "prune=1 is no share between 0 and 1"),
        ("prune=x", "prune=x is no share between 0 and 1"),
        ("layers=none", "layers=none is no number of layers"),
        ("layers=1:middle", "layers=1:middle is no number of layers"),
        ("layers=0,2,0", "layers=0,2,0 names a layer twice; name each once"),
        ("layers=0,2:last", "layers=0,2:last is no number of layers"),
        ("factor=wide", "factor=wide is no width of a table"),
        ("int8,bf16", "int8,bf16 gives weights twice"),
    ],
)
def test_methods_that_are_none_are_refused_in_a_sentence(to: str, problem: str) -> None:
    with pytest.raises(InputError) as refusal:
        CompressionMethod.parse(to)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("layers=2", "layers=2 leaves out none of 2 layers"),
        ("prune=0.001", "prune=0.001 leaves 32 of 32 neurons"),
        ("factor=16", "factor=16 is no narrower than the tables, 16"),
    ],
)
def test_what_the_source_has_not_is_refused(source: RunFolder, to: str, problem: str) -> None:
    with pytest.raises(InputError) as refusal:
        compressed_config(source, CompressionMethod.parse(to))
    assert problem in str(refusal.value)


def test_what_does_not_go_together_is_refused_before_anything_is_made(place: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = SHARED | {"embedding_width": None, "depth": 3}
    shared = trained(
        place / "results" / "shared", config(place / "text.txt", architecture=shape, recipe={"budget": {"steps": 2}})
    )
    asked = [CompressionMethod.parse(to) for to in ("prune=0.5", "layers=2")]
    with pytest.raises(InputError, match="layers that share their weights cannot be cut off"):
        compress(shared, prepare(shared.config().data), asked, SweepFolder(tmp_path / "small"), Execution())
    assert not SweepFolder(tmp_path / "small").runs()
    recipe = {"start": str(shared.path), "budget": {"steps": 0}}
    wider = config(place / "text.txt", architecture=shape | {"ffn": 64}, recipe=recipe)
    with pytest.raises(InputError, match=r"has ffn 32, less than 64; neurons and directions can only be left out"):
        starting_weights(wider, prepare(wider.data))
    with pytest.raises(InputError, match=r"recipe\.weights int8 rounds the weights of a trained run; train in fp32"):
        config(place / "text.txt", recipe={"weights": "int8"})


def test_the_command_puts_a_run_beside_its_compressions(study: Any, source: RunFolder, tmp_path: Path) -> None:
    options = ("--to", "int8", "--to", "factor=8", "--into", tmp_path / "small", "--seconds", 0.01, "--threads", 1)
    status, out, err = study("compress", source.path, *options)
    assert status == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["run", "source", "int8", "factor=8"]
    assert "narrower tables: the MLM head, and with it the loss, is a linear fit until steps train it" in out
    smaller = next(run for run in SweepFolder(tmp_path / "small").runs() if record_of(run).config.recipe.weights == "int8")
    for run, seed, score, knobs in (
        *((source, seed, 0.89 + seed / 100, None) for seed in range(3)),
        *((run, seed, 0.5, Knobs(max_train_examples=50)) for run in (source, smaller) for seed in range(3)),
    ):
        add_score(SweepFolder.of(run), record_of(run), "sst2", TASKS["sst2"], "fine_tune", seed, score, knobs)
        add_score(SweepFolder.of(run), record_of(run), "sst2", TASKS["sst2"], "random_init", seed, 0.6)
    status, out, err = study("compress", source.path, *options, "--json")
    assert status == 0, err
    first, second, third = json.loads(out)["runs"]
    few = {"sst2 (max_train_examples=50)/accuracy": 0.5}
    assert (first["scores"], second["scores"], third["scores"]) == ({"sst2/accuracy": pytest.approx(0.9)} | few, few, {})
    assert second["disk_bytes"] < 0.5 * first["disk_bytes"]
    assert second["median_seconds"] > 0
    assert second["difference_standard_error_nats"] > 0
    assert {run.run_id for run in SweepFolder(tmp_path / "small").runs()} > {Path(second["run"]).name}
    status, _, err = study("compress", source.path, "--to", "int4", "--to", "fp16", "--into", tmp_path / "small")
    assert status == 2
    assert "give int8" in err
    assert "give bf16" in err


def test_a_compression_that_failed_says_why_and_is_made_when_it_is_asked_for_again(
    source: RunFolder, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    asked, prepared = [CompressionMethod.parse("bf16")], prepare(source.config().data)
    with monkeypatch.context() as disk:
        disk.setattr("study.training.run.write_atomically", full)
        with pytest.raises(
            InputError, match=r"did not complete \(FAILED: disk full: .*\); mend that, and give the command again$"
        ):
            compress(source, prepared, asked, SweepFolder(tmp_path), Execution())
    (run,) = compress(source, prepared, asked, SweepFolder(tmp_path), Execution())
    assert (record_of(run).state, record_of(run).attempts) == ("COMPLETED", 2)


def test_a_compression_that_hangs_is_recorded_and_ends_in_one_line(
    source: RunFolder, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, statuses = threading.Event(), list[int]()

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    def hang(*_: Any) -> None:
        assert ended.wait(60)
        raise Fenced("the process is gone")

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(Training, "validated", hang)
    asked, prepared = [CompressionMethod.parse("bf16")], prepare(source.config().data)
    with pytest.raises(InputError, match="did not complete"):
        compress(source, prepared, asked, SweepFolder(tmp_path), Execution(hang_seconds=0.2))
    (run,) = SweepFolder(tmp_path).runs()
    assert (statuses, record_of(run).state) == ([2], "HUNG")
    line, fenced = capfd.readouterr().err.splitlines()
    assert fenced == "the process is gone", "which it would be"
    assert line.startswith(f"error: {run.path}: did not complete (HUNG: no step for 0.2 s, in ")
    assert line.endswith("; give the command again, with STUDY_HUNG_AFTER=30min where a step takes longer")
    assert "most recent call first" in run.log_file.read_text(), "the stacks of all threads"


@pytest.mark.parametrize("steps", [0, 1])
def test_text_that_weighs_neurons_counts_as_progress(
    source: RunFolder, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    ticks, while_shrinking = list[int](), list[int]()

    def watched(*arguments: Any) -> dict[str, torch.Tensor]:
        before = len(ticks)
        weights = shrunk(*arguments)
        while_shrinking.append(len(ticks) - before)
        return weights

    monkeypatch.setattr("study.training.reshaping._BATCH_TOKENS", 1024)
    monkeypatch.setattr("study.training.trained_runs.shrunk", watched)
    monkeypatch.setattr(Watchdog, "tick", lambda _: ticks.append(1))
    values = record_of(source).config.to_dict()
    values["recipe"] |= {"start": str(source.path), "budget": {"steps": steps}}
    values["architecture"]["ffn"] = 24
    run = trained(tmp_path, RunConfig.parse(values))
    tokens = min(CALIBRATION_TOKENS, len(prepare(source.config().data).split("train")) * 16)
    assert record_of(run).state == "COMPLETED"
    assert while_shrinking == [tokens // 1024]
    assert tokens // 1024 > 10


@pytest.mark.slow
def test_a_compression_is_compared_with_the_run_nearest_in_bytes(study: Any, place: Path, tmp_path: Path) -> None:
    runs, recipe = place / "results" / "sizes", {"budget": {"steps": 2}}
    large = trained(runs, config(place / "text.txt", architecture={"width": 32}, recipe=recipe))
    small, tiny = (trained(runs, config(place / "text.txt", architecture={"width": width}, recipe=recipe)) for width in (8, 4))
    beside = ("--beside", tiny.path, "--beside", small.path, "--into", tmp_path / "small", "--seconds", 0.01, "--threads", 1)
    status, out, err = study("compress", large.path, "--to", "int8", *beside, "--json")
    assert status == 0, err
    answer = json.loads(out)
    (pair,) = answer["at_equal_bytes"]
    _, compressed, first, second = answer["runs"]
    assert [first["name"], second["name"]] == [tiny.run_id[:8], small.run_id[:8]]
    assert pair["other"] == small.run_id[:8]
    assert pair["bytes_ratio"] == compressed["disk_bytes"] / second["disk_bytes"]
    assert pair["difference_nats"] == pytest.approx(compressed["loss_nats"] - second["loss_nats"], abs=1e-6)
    status, out, _ = study("compress", large.path, "--to", "int8", *beside)
    assert f"of {small.run_id[:8]}, a loss that differs by" in out
    masked = trained(runs, config(place / "text.txt", masking={"rate": 0.3}, recipe=recipe))
    status, _, err = study("compress", large.path, "--to", "int8", "--beside", masked.path, "--into", tmp_path / "none")
    assert status == 2
    assert "was validated on other tokens; give one of the same text" in err
    assert not (tmp_path / "none" / "runs").exists()
