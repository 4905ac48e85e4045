"""Runs that begin with the weights of another one, or learn from its predictions: what they get of it, and what is refused."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import yaml
from scipy import stats

from study.base.errors import InputError
from study.base.randomness import Stream, stream_seed
from study.base.schema import deep_merge
from study.config.named_runs import cell_as_text, kept_layers, parse_teacher
from study.config.presets import PRESETS
from study.config.run_config import RunConfig
from study.config.sweep import SearchSweep
from study.counting.architecture import Architecture
from study.counting.layer_losses import LayerLosses
from study.counting.parameters import flops_per_token
from study.data.batches import training_masker
from study.data.masking import IGNORED, MaskedBatch
from study.data.prepared import data_fingerprint, prepare
from study.evidence.evidence import gather
from study.model.masked_language_model import MaskedLanguageModel, TeacherModel
from study.model.optimization import adamw, schedule
from study.model.stored_weights import trained_weights
from study.planning.plan import searched_config
from study.plotting.loss_by_size import LossBySize
from study.scoring.exporting import export
from study.scoring.pretrained import Pretrained
from study.store.records import RunRecord, counts_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.callbacks import Watchdog
from study.training.compressing import CompressionMethod, compressed_config
from study.training.run import Filing
from study.training.trained_runs import check_trained_runs, cut
from study.training.trainer import Trained
from tests.small import SHARED, config, stop_after, trained, write_corpus
from tests.sweeps import write_topics
from tests.synthetic import add_run, sweep_folder
from tests.transformers_models import MODERN

RECIPE: dict[str, Any] = {"learning_rate": 0.01, "batch_tokens": 256}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> RunFolder:
    """A trained run of four layers that has left the plateau."""
    return trained(tmp_path_factory.mktemp("source"), toy(corpus, depth=4, budget={"steps": 200}))


def toy(corpus: Path, depth: int = 2, width: int = 16, **recipe: Any) -> RunConfig:
    sizes = {"depth": depth, "width": width, "vocabulary": 100}
    return config(corpus, architecture=sizes, recipe=RECIPE | recipe, data={"tokenizer": {"vocabulary": 100}})


def started(corpus: Path, start: object, depth: int = 2, **recipe: Any) -> RunConfig:
    return toy(corpus, depth, start=str(start), **recipe)


def taught(corpus: Path, teacher: object, depth: int = 1, **recipe: Any) -> RunConfig:
    return toy(corpus, depth, width=8, teacher=str(teacher), **recipe)


def sweep_of(corpus: Path, depths: list[int], steps: int, **rest: object) -> dict[str, Any]:
    """A sweep of small encoders of these depths."""
    return {
        "name": "toy",
        "question": "May I cut layers off, and do I need distillation?",
        "data": toy(corpus).data.model_dump(mode="json", exclude_none=True),
        "base": {"recipe": RECIPE | {"precision": "fp32"}},
        "shapes": {"grid": {"depth": depths, "width": [16], "heads": [2], "ffn": [32]}},
        "budgets": {"steps": [steps]},
        **rest,
    }


def refusal_of(*runs: RunConfig) -> str:
    with pytest.raises(InputError) as caught:
        check_trained_runs(runs)
    return str(caught.value)


def test_one_flipped_byte_of_weights_is_noticed(corpus: Path, tmp_path: Path) -> None:
    """The file opens all the same, and the record says that it is another; a run that starts from it has the reason."""
    source = trained(tmp_path, toy(corpus, budget={"steps": 2}))
    content = bytearray(source.weights_file.read_bytes())
    content[-5] ^= 1
    source.weights_file.write_bytes(content)
    assert safetensors.torch.load_file(source.weights_file)
    with pytest.raises(InputError, match=r"weights\.safetensors: is damaged, and the weights are needed; fetch it, or train"):
        trained_weights(source)
    content[-5] ^= 1
    source.weights_file.write_bytes(content)
    assert trained_weights(source)
    record = source.record()
    assert record is not None
    earlier = record.model_copy(update={"weights_sha256": None})
    source.put_record_aside({"reason": "as of before"})
    source.file_record(earlier)
    content[-5] ^= 1
    source.weights_file.write_bytes(content)
    assert trained_weights(source), "an older record names no hash"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _: {}, "lacks "),
        (
            lambda weights: {name: tensor for name, tensor in weights.items() if "blocks.1" not in name},
            "lacks encoder.blocks.1",
        ),
        (lambda weights: weights | {"extra": torch.zeros(1)}, "holds extra, unlike the run's config.yaml"),
        (lambda weights: {name: tensor[..., :1].clone() for name, tensor in weights.items()}, " instead of ("),
        (lambda weights: {name: tensor.int() for name, tensor in weights.items()}, " in int32, not as floating-point numbers"),
        (lambda weights: {name: tensor / 0 for name, tensor in weights.items()}, " with values that are not finite"),
    ],
)
def test_weights_of_another_architecture_are_refused_by_whoever_loads_them(
    corpus: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], problem: str
) -> None:
    source = trained(tmp_path, toy(corpus, budget={"steps": 2}))
    record = source.record()
    assert record is not None
    source.put_record_aside({"reason": "as of before weights had a hash"})
    source.file_record(record.model_copy(update={"weights_sha256": None}))
    safetensors.torch.save_file(change(trained_weights(source)), source.weights_file)
    run = Pretrained(source)
    for load in (lambda: trained_weights(source), run.masked_language_model, lambda: export(run, tmp_path / "exported")):
        with pytest.raises(InputError, match=re.escape(problem)) as refusal:
            load()
        assert str(source.weights_file) in str(refusal.value)
    assert not (tmp_path / "exported").exists()


def test_layers_are_kept_as_the_literature_keeps_them() -> None:
    assert kept_layers(12, 6, "spread") == (0, 2, 4, 7, 9, 11), "DistilBERT's, of its scripts/extract_distilbert.py"
    assert kept_layers(12, 8, "first") == (0, 1, 2, 3, 4, 5, 6, 7)
    assert kept_layers(12, 3, "last") == (9, 10, 11)
    for keep in ("first", "last", "spread"):
        assert kept_layers(5, 5, keep) == (0, 1, 2, 3, 4)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"has 2 layers, of which {wrong} cannot be kept"):
            kept_layers(2, wrong, "first")
    assert kept_layers(12, 3, "9,0,4") == (9, 0, 4), "named ones in their order"


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ({}, (1, 10, 11)),
        ({"norm": "pre"}, (1, 10, 11)),
        ({"position_encoding": "rotary"}, (1, 10, 11)),
        ({"distance_bias": "learned", "query_key_norm": True}, (1, 10, 11)),
        (MODERN, (0, 10, 11)),
    ],
)
def test_a_cut_model_is_the_deep_one_without_the_other_blocks(kind: dict[str, Any], layers: tuple[int, ...]) -> None:
    sizes = {"width": 16, "heads": 2, "ffn": 32, "vocabulary": 100, "positions": 8} | kind
    whole = MaskedLanguageModel(Architecture.parse(sizes | {"depth": 12}), seed=1).eval()
    short = MaskedLanguageModel(Architecture.parse(sizes | {"depth": 3}), seed=2).eval()
    short.load_state_dict(cut(whole.state_dict(), layers))
    whole.encoder.block_of_layer = list(layers)
    tokens = torch.arange(16).view(2, 8)
    assert torch.equal(short(tokens), whole(tokens))


def test_a_donor_is_known_by_its_run_and_layers_wherever_it_lies(corpus: Path) -> None:
    run = "0123456789abcdef"
    ids = {start: started(corpus, start).fingerprint("data") for start in ("fresh", run, f"a/{run}", f"/b/{run}/:first")}
    other = started(corpus, f"a/{run}:last")
    assert len({*ids.values()}) == 2
    assert ids["fresh"] == toy(corpus).fingerprint("data")
    assert other.fingerprint("data") not in ids.values()
    assert started(corpus, f"b/{run}:last").key == other.key
    assert started(corpus, f"b/{run}/").variant(("recipe.start",)) == f"start={run}:first"
    assert RunConfig.parse(other.to_dict()) == other
    assert "start" not in toy(corpus).to_dict()["recipe"]
    for wrong in ("afresh", "results/mine", f"{run}0"):
        with pytest.raises(InputError, match=r"recipe\.start: .*neither fresh nor the folder of a run"):
            started(corpus, wrong)
    with pytest.raises(InputError, match=r"recipe\.start: .* has ':middle' after its run; known: :0,2,4, :first"):
        started(corpus, f"a/{run}:middle")


def test_a_run_goes_on_from_the_layers_of_another(corpus: Path, source: RunFolder, tmp_path: Path) -> None:
    """A rate of next to nothing leaves the weights as they were given, and the source's loss where no layer is cut."""
    still: dict[str, Any] = {"learning_rate": 1e-12, "weight_decay": 0.0, "budget": {"steps": 1}, "warmup_fraction": 0.0}
    whole = trained(tmp_path, started(corpus, source.path, depth=4, **still))
    given, actual = trained_weights(source), trained_weights(whole)
    assert all(torch.allclose(actual[name], given[name], atol=1e-9) for name in given)
    losses = [record.loss_nats for folder in (source, whole) if (record := folder.record())]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    short = trained_weights(trained(tmp_path, started(corpus, f"{source.path}:spread", **still)))
    expected = cut(given, (0, 3))
    assert short.keys() == expected.keys()
    assert all(torch.allclose(short[name], expected[name], atol=1e-9) for name in expected)


def test_a_run_of_no_steps_has_the_weights_of_its_donor_and_the_loss_of_these(
    corpus: Path, source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(Watchdog, "on_validation_batch_end", lambda self, *_, **__: seen.append(self))
    whole = source.record()
    uncut, short = (
        trained(tmp_path / str(depth), started(corpus, f"{source.path}{keep}", depth, budget={"steps": 0}))
        for depth, keep in ((4, ""), (2, ":last"))
    )
    record = uncut.record()
    assert whole is not None
    assert record is not None
    assert (record.state, record.tokens, record.train_flops, record.tokens_per_second) == ("COMPLETED", 0, 0, None)
    assert record.loss_nats == pytest.approx(whole.loss_nats, abs=1e-6)
    kept = cut(trained_weights(source), (2, 3))
    assert all(torch.equal(kept[name], tensor) for name, tensor in trained_weights(short).items())
    assert len({*seen}) == 2, "the validation of each is watched"
    cut_short = short.record()
    assert cut_short is not None
    assert cut_short.loss_nats is not None
    assert record.loss_nats is not None
    assert cut_short.loss_nats > record.loss_nats + 0.05


def test_named_layers_are_kept_in_their_order(corpus: Path, source: RunFolder, tmp_path: Path) -> None:
    wanted = started(corpus, f"{source.path}:3,1", budget={"steps": 0})
    expected = cut(trained_weights(source), (3, 1))
    assert all(torch.equal(expected[name], tensor) for name, tensor in trained_weights(trained(tmp_path, wanted)).items())
    made = compressed_config(source, CompressionMethod.parse("layers=3,1,int8"))
    assert (made.recipe.start, made.recipe.weights) == (wanted.recipe.start, "int8")
    assert started(corpus, f"{source.path}:0,01").key == started(corpus, source.path).key, "the first two by another name"
    for keep, problem in (
        (":0,2,3", r"gives 3 layers \(0,2,3\) to 2; name as many as the encoder has"),
        (":0,4", "has layers 0 to 3, not 4"),
        (":1,1", r"names a layer twice \(1,1\); name each once"),
    ):
        with pytest.raises(InputError, match=problem):
            check_trained_runs([started(corpus, f"{source.path}{keep}")])
    for to, problem in (
        ("layers=0,4", "layers=0,4, but .* has layers 0 to 3, not 4"),
        ("layers=3,2,1,0", "leaves out none of 4"),
    ):
        with pytest.raises(InputError, match=problem):
            compressed_config(source, CompressionMethod.parse(to))


@pytest.mark.slow
def test_a_stopped_run_goes_on_from_its_checkpoint_and_needs_its_donor_no_more(
    corpus: Path, source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = started(corpus, source.path, budget={"steps": 16})
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        assert trained(tmp_path / "stopped", wanted, stop_after(13, patch)).record() is None
    away = source.path.rename(tmp_path / "away")
    try:
        resumed = trained(tmp_path / "stopped", wanted)
        assert trained(tmp_path / "stopped", wanted).attempts() == 2, "a run that has ended asks for no source"
    finally:
        away.rename(source.path)
    for name, tensor in trained_weights(straight).items():
        assert torch.equal(tensor, trained_weights(resumed)[name])


def test_what_a_donor_cannot_give_is_reported_before_anything_is_spent(corpus: Path, source: RunFolder, tmp_path: Path) -> None:
    check_trained_runs([started(corpus, source.path), toy(corpus)])
    missing = started(corpus, tmp_path / "0123456789abcdef")
    assert "is not the folder of a finished run" in refusal_of(missing)
    assert refusal_of(missing, missing).count("\n") == 0, "each once"
    wide = toy(corpus, width=32, start=str(source.path))
    differs = "a run can start only from one that differs from it in depth, ffn, embedding_width alone"
    assert f"has width 16, not 32; {differs}" in refusal_of(wide)
    assert "has 4 of the 5 layers that L5-H16-A2-F32 begins with" in refusal_of(started(corpus, source.path, depth=5))
    renamed = tmp_path / ("e" * 16)
    renamed.symlink_to(source.path)
    assert f"holds run {source.run_id}; a run's folder has its id for a name" in refusal_of(started(corpus, renamed))
    lost = RunFolder(tmp_path / source.run_id)
    lost.path.mkdir()
    record = source.record()
    assert record is not None
    lost.file_record(record)
    assert "has no weights.safetensors" in refusal_of(started(corpus, lost.path))
    failed = RunFolder(tmp_path / ("f" * 16))
    failed.path.mkdir()
    failed.file_record(RunRecord.parse(record.model_dump() | {"state": "DIVERGED", "run_id": "f" * 16}))
    assert "did not complete (DIVERGED)" in refusal_of(started(corpus, failed.path))


def of_kind(corpus: Path, kind: dict[str, Any], depth: int = 2, **recipe: Any) -> RunConfig:
    return RunConfig.parse(deep_merge(toy(corpus, depth, **recipe).to_dict(), {"architecture": kind}))


@pytest.mark.parametrize(
    ("kind", "keep", "refusal"),
    [
        (SHARED, "", "has layer_groups 1; layers that share their weights cannot be cut off"),
        (
            MODERN,
            ":last",
            "has no norm before its first layer (embedding_norm True), which was trained without one; keep that layer",
        ),
    ],
)
def test_layers_that_do_not_stand_alone_are_not_cut_off_and_a_whole_encoder_serves(
    corpus: Path, tmp_path: Path, kind: dict[str, Any], keep: str, refusal: str
) -> None:
    whole = trained(tmp_path, of_kind(corpus, kind, depth=3, budget={"steps": 4}))
    start = f"{whole.path}{keep}"
    assert refusal_of(of_kind(corpus, kind, start=start)).endswith(refusal)
    for keeping in () if kind == SHARED else ("", ":spread"):
        check_trained_runs([of_kind(corpus, kind, start=f"{whole.path}{keeping}")])
    uncut = trained(tmp_path, of_kind(corpus, kind, depth=3, start=start, budget={"steps": 0})).record()
    record = whole.record()
    assert uncut is not None
    assert record is not None
    assert uncut.loss_nats == pytest.approx(record.loss_nats, abs=1e-6)
    student = trained(tmp_path, taught(corpus, whole.path, budget={"steps": 2})).record()
    assert student is not None
    assert student.state == "COMPLETED", student.reason


def test_a_teacher_is_known_by_its_run_weight_and_temperature_wherever_it_lies(corpus: Path) -> None:
    run = "0123456789abcdef"
    usual = taught(corpus, f"a/{run}")
    for same in (run, f"/b/{run}/", f"{run}:weight=1", f"{run}:weight=10e-1:temperature=1.0"):
        assert taught(corpus, same).key == usual.key
        assert taught(corpus, same).fingerprint("data") == usual.fingerprint("data")
    others = ("none", f"{run}:weight=0.5", f"{run}:temperature=4", f"{run}:weight=0.5:temperature=4")
    assert len({taught(corpus, other).fingerprint("data") for other in (run, *others)}) == 5
    assert taught(corpus, "none").fingerprint("data") == toy(corpus, 1, 8).fingerprint("data")
    assert taught(corpus, others[3]).variant(("recipe.teacher",)) == f"teacher={run}:weight=0.5:temperature=4"
    assert RunConfig.parse(usual.to_dict()) == usual
    assert taught(corpus, f"{run}:weight=0.1234567").key != taught(corpus, f"{run}:weight=0.1234568").key


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ("0123", "is neither none nor the folder of a run"),
        ("0123456789abcdef:temperature=1:weight=0.5", "has more after its run than may follow it; .*, in this order"),
        ("0123456789abcdef:temprature=2", "has ':temprature=2' after its run; did you mean ':temperature=2'"),
        ("0123456789abcdef:weight=1.2.3", "has a weight or a temperature that is not a number"),
        ("0123456789abcdef:weight=0", "needs a weight above 0 and at most 1"),
        ("0123456789abcdef:weight=0:temperature=2:hidden_mse=1", "has a temperature 2, which changes nothing at weight 0"),
        ("0123456789abcdef:weight=1.5", "needs a weight above 0 and at most 1"),
        ("0123456789abcdef:temperature=-1", "and a temperature above 0"),
        ("0123456789abcdef:temperature=1e999", "and a temperature above 0"),
    ],
)
def test_what_is_no_teacher_is_refused(corpus: Path, teacher: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        taught(corpus, teacher)
    assert [problem.place for problem in caught.value.problems] == ["recipe.teacher"]


def test_a_budget_in_flops_has_no_room_for_a_teacher(corpus: Path) -> None:
    with pytest.raises(InputError, match=r"flops 1e\+09 would leave out the FLOPs of the teacher .*; give tokens or steps"):
        taught(corpus, "0123456789abcdef", budget={"flops": 1e9, "steps": None})


@pytest.mark.parametrize(("weight", "temperature"), [(0.5, 2.0), pytest.param(1.0, 1.0, marks=pytest.mark.slow)])
def test_a_taught_run_is_the_plain_loop_with_its_teachers_lesson(
    corpus: Path, source: RunFolder, tmp_path: Path, weight: float, temperature: float
) -> None:
    """The loss of Hinton et al. at the masked positions, in float64, from the teacher's predictions on the masked tokens."""
    teacher = f"{source.path}:weight={weight}:temperature={temperature}"
    wanted = taught(corpus, teacher, budget={"steps": 10}, gradient_clip_norm=0)
    folder = trained(tmp_path, wanted, kernels="eager")
    prepared, whole = prepare(wanted.data), source.record()
    assert whole is not None
    deep = MaskedLanguageModel(whole.config.architecture).eval()
    deep.load_state_dict(trained_weights(source))
    student = MaskedLanguageModel(wanted.architecture, seed=0)
    optimizer = adamw(student, wanted.recipe)
    rates = schedule(optimizer, wanted.steps, wanted.recipe)
    masker, train = training_masker(wanted, prepared), prepared.split("train")
    order = np.random.Generator(np.random.PCG64(stream_seed(Stream.DATA_ORDER, 0, 0))).permutation(len(train))
    losses = []
    for step in range(10):
        batch = torch.from_numpy(train.take(order[16 * step : 16 * step + 16]))
        masked = masker(batch, torch.Generator().manual_seed(stream_seed(Stream.MASKS, 0, step)))
        logits = student(masked.tokens, masked.positions).flatten(0, 1).double()
        with torch.no_grad():
            target = torch.softmax(deep(masked.tokens, masked.positions).flatten(0, 1).double() / temperature, -1)
        learned = torch.softmax(logits / temperature, -1)
        divergence = (target * (target / learned).log()).sum(-1).mean()
        loss = (1 - weight) * F.cross_entropy(logits, masked.labels.flatten()) + weight * temperature**2 * divergence
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rates.step()
        losses.append(loss.item())
    logged = [row["train/loss"] for row in folder.metrics() if "train/loss" in row]
    assert logged == pytest.approx(losses, rel=1e-4)
    assert trained_weights(folder).keys() == student.state_dict().keys(), "no weights of the teacher"


def test_a_teacher_that_is_the_student_has_nothing_to_teach(corpus: Path) -> None:
    model = MaskedLanguageModel(toy(corpus).architecture, seed=1)
    masked = MaskedBatch(torch.arange(32).view(2, 16), torch.tensor([[1, 5], [2, 3]]), torch.tensor([[7, IGNORED], [9, 9]]))
    teacher = TeacherModel(copy.deepcopy(model), weight=1.0, temperature=3.0).predict(masked)
    loss = model.predicted_loss(model.encoder(masked.tokens, positions_BxK=masked.positions), masked.labels, teacher)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert all(parameter.grad is None or parameter.grad.abs().max() < 1e-6 for parameter in model.parameters())


def test_the_flops_of_a_taught_run_are_its_own_and_a_third_of_its_teachers(
    corpus: Path, source: RunFolder, tmp_path: Path
) -> None:
    folder = trained(tmp_path, taught(corpus, source.path, budget={"steps": 4}))
    own, whole = (toy(corpus, 1, 8, budget={"steps": 4}), toy(corpus, 4, 16, budget={"steps": 4}))
    record = folder.record()
    assert record is not None
    for convention, flops in counts_of(own, 4).items():
        if "flops" in convention:
            assert getattr(record, convention) == pytest.approx(flops + counts_of(whole, 4)[convention] / 3)
    assert list(folder.metrics())[-1]["trainer/flops"] == pytest.approx(record.train_flops)
    assert record.parameters == counts_of(own, 4)["parameters"]


def test_a_teacher_that_goes_when_its_pupil_has_learned_is_counted_all_the_same(
    corpus: Path, source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, write = tmp_path / "away", Filing._write_results

    def teacher_goes(filing: Filing, done: Trained) -> None:
        source.path.rename(away)
        write(filing, done)

    monkeypatch.setattr(Filing, "_write_results", teacher_goes)
    try:
        folder = trained(tmp_path, taught(corpus, source.path, budget={"steps": 4}))
    finally:
        away.rename(source.path)
    record = folder.record()
    assert record is not None
    assert record.train_flops == pytest.approx(list(folder.metrics())[-1]["trainer/flops"])


@pytest.mark.slow
def test_a_teacher_of_longer_sequences_teaches_shorter_ones(corpus: Path, source: RunFolder, tmp_path: Path) -> None:
    values = deep_merge(taught(corpus, source.path, budget={"steps": 5}).to_dict(), {"data": {"sequence_length": 8}})
    record = trained(tmp_path, RunConfig.parse(values)).record()
    assert record is not None
    assert record.state == "COMPLETED", record.reason


@pytest.mark.slow
@pytest.mark.parametrize("all_else", [False, True], ids=["as BERT", "every knob of the recipe"])
def test_a_taught_run_that_was_stopped_goes_on_to_the_same_bits(
    all_else: bool, corpus: Path, source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masking = {"rate": 0.3, "whole_words": True, "static_copies": 2}
    knobs = {"optimizer": "muon", "parametrization": "completep", "masking": masking, "start": str(source.path)}
    shared: dict[str, Any] = {"teacher": str(source.path), "budget": {"steps": 15}, "dropout": 0.1}
    wanted = toy(corpus, 1, 16 if all_else else 8, **shared, **(knobs if all_else else {}))
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        assert trained(tmp_path / "stopped", wanted, stop_after(7, patch)).record() is None
    resumed = trained(tmp_path / "stopped", wanted)
    assert resumed.attempts() == 2
    for name, tensor in trained_weights(straight).items():
        assert torch.equal(tensor, trained_weights(resumed)[name])


@pytest.mark.slow
def test_runs_of_preset_modern_start_from_each_other_learn_from_each_other_and_resume(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"width": 16, "vocabulary": 100, **PRESETS["modern"]["architecture"]}
    data = {"tokenizer": {"vocabulary": 100}}
    shared: dict[str, Any] = {**PRESETS["modern"]["recipe"], "batch_tokens": 256, "budget": {"steps": 10}}
    deep = trained(tmp_path / "deep", config(corpus, architecture=sizes | {"depth": 3}, recipe=shared, data=data))
    from_it = shared | {"start": f"{deep.path}:spread", "teacher": f"{deep.path}:weight=0.5"}
    wanted = config(corpus, architecture=sizes | {"depth": 2}, recipe=from_it, data=data)
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        assert trained(tmp_path / "stopped", wanted, stop_after(4, patch)).record() is None
    resumed = trained_weights(trained(tmp_path / "stopped", wanted))
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in trained_weights(straight).items())


LAYERS = {
    "cosine": ":weight=0.5:hidden_cosine=0.5",
    "TinyBERT, projected": ":weight=0:hidden_mse=1:attention=1:layers=uniform",
    "MiniLM": ":weight=0:relations=1:layers=1-3",
    "MiniLMv2": ":weight=0.5:temperature=2:relations=1:relation_heads=4",
}
"""Losses between layers as a recipe names them."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cosine", marks=pytest.mark.slow),
        "TinyBERT, projected",
        pytest.param("MiniLM", marks=pytest.mark.slow),
        pytest.param("MiniLMv2", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_matches_layers_goes_on_to_the_same_bits_and_counts_them(
    name: str, corpus: Path, source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of BERT's recipe and of Muon with completep; the projection to the teacher's width is resumed, too."""
    knobs = {} if name == "cosine" else {"optimizer": "muon", "parametrization": "completep", "dropout": 0.1}
    narrow = "projected" in name
    wanted = toy(corpus, 1, 8 if narrow else 16, teacher=f"{source.path}{LAYERS[name]}", budget={"steps": 10}, **knobs)
    check_trained_runs([wanted])
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        assert trained(tmp_path / "stopped", wanted, stop_after(4, patch)).record() is None
    resumed = trained_weights(trained(tmp_path / "stopped", wanted))
    assert all(torch.equal(tensor, resumed[key]) for key, tensor in trained_weights(straight).items())
    record, whole, teacher = straight.record(), source.record(), wanted.recipe.teacher_run
    assert record is not None
    assert whole is not None
    assert teacher is not None
    assert record.state == "COMPLETED", record.reason
    assert record.spent_flops == record.train_flops + whole.train_flops
    products = teacher.losses.flops_per_token(wanted.architecture, whole.config.architecture, 16)
    read = wanted.predictions if teacher.weight else 0
    theirs = flops_per_token(whole.config.architecture, 16, read)["train_flops"] / 3
    assert record.train_flops == pytest.approx(wanted.tokens * (wanted.flops_per_token["train_flops"] + theirs + products))
    assert wanted.spared_flops_per_token_with(whole.config.architecture) == 0
    plain = toy(corpus, 1, 8 if narrow else 16, teacher=f"{source.path}", budget={"steps": 10}, **knobs)
    assert plain.fingerprint("data") != wanted.fingerprint("data")


def test_layers_that_a_teacher_cannot_match_are_reported_before_anything_is_spent(corpus: Path, source: RunFolder) -> None:
    assert "layers 1-5 go beyond" in refusal_of(taught(corpus, f"{source.path}:hidden_mse=1:layers=1-5"))
    assert "hidden_cosine needs equal widths" in refusal_of(taught(corpus, f"{source.path}:hidden_cosine=1"))
    check_trained_runs([taught(corpus, f"{source.path}:hidden_mse=1")])
    for wrong, message in {
        ":hidden_mse=1:layers=middle": "has ':layers=middle' after its run; did you mean ':layers=last'",
        ":relation_heads=4": "has relation_heads 4 without relations",
        ":layers=uniform": "matches layers uniform by no loss",
        ":hidden_mse=-1": "has hidden_mse -1; the weight of a loss is a number from 0",
        ":weight=0": "above 0 and at most 1 .0 beside losses between layers.",
    }.items():
        with pytest.raises(InputError, match=message):
            taught(corpus, f"{source.path}{wrong}")


def test_a_sweep_spells_losses_between_layers_and_growth_as_mappings() -> None:
    cell = {"cell": "deep", "weight": 0, "hidden_mse": 1, "layers": {1: 2, 2: 4}}
    assert cell_as_text("teacher", cell) == "cell deep:weight=0:hidden_mse=1:layers=1-2,2-4"
    assert cell_as_text("start", {"cell": "small", "grow": "uneven"}) == "cell small:grow=uneven"
    named = parse_teacher(f"{'0' * 16}:weight=0:hidden_mse=1:layers=1-2,2-4")
    assert named is not None
    assert named.losses == LayerLosses(hidden_mse=1.0, layers="1-2,2-4")
    assert named.identity == f"{'0' * 16}:weight=0:hidden_mse=1:layers=1-2,2-4"
    with pytest.raises(ValueError, match="has 'hidden' beside cell; known: weight, temperature, hidden_cosine"):
        cell_as_text("teacher", {"cell": "deep", "hidden": 1})
    with pytest.raises(ValueError, match="has keep 'middle' beside cell; give one such as first or last or spread or 0,2,4"):
        cell_as_text("start", {"cell": "deep", "keep": "middle"})
    with pytest.raises(ValueError, match=r"has weight 'half' beside cell; give one such as 0\.9"):
        cell_as_text("teacher", {"cell": "deep", "weight": "half"})


def test_what_a_teacher_cannot_give_is_reported_before_anything_is_spent(
    corpus: Path, source: RunFolder, tmp_path: Path
) -> None:
    wanted = taught(corpus, source.path)
    check_trained_runs([wanted, taught(corpus, source.path, 6)], begun={wanted.key})
    missing = taught(corpus, tmp_path / "0123456789abcdef")
    assert "recipe.teacher" in refusal_of(missing)
    assert "is not the folder of a finished run" in refusal_of(missing)
    with pytest.raises(InputError, match="is not the folder of a"):  # unlike a source, a teacher is needed to the end
        check_trained_runs([missing], begun={missing.key})
    both = taught(corpus, tmp_path / ("1" * 16), start=str(tmp_path / ("2" * 16)))
    assert refusal_of(both).count("\n") == 1, "all at once"
    data = {"tokenizer": {"vocabulary": 90}}
    values = wanted.to_dict()
    fewer = RunConfig.parse(deep_merge(values, {"data": data, "architecture": {"vocabulary": 90}}))
    assert "has a vocabulary of 100, not 90" in refusal_of(fewer)
    longer = RunConfig.parse(deep_merge(values, {"data": {"sequence_length": 32}, "architecture": {"positions": 32}}))
    assert "has 16 positions, but sequences have 32 tokens" in refusal_of(longer)


def test_a_search_that_is_over_needs_its_teacher_no_more(corpus: Path, tmp_path: Path, study: Any) -> None:
    sizes = {"depth": 1, "width": 16, "heads": 2, "ffn": 32}
    sweep = {
        "name": "toy",
        "question": "Which rate?",
        "data": toy(corpus).data.model_dump(mode="json", exclude_none=True),
        "base": {"architecture": sizes, "recipe": RECIPE | {"teacher": str(tmp_path / "0123456789abcdef")}},
        "budgets": {"steps": [20]},
        "search": {"trials": 1, "space": {"recipe.dropout": {"low": 0.0, "high": 0.5}}},
    }
    file, results = tmp_path / "toy.yaml", tmp_path / "results"
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))
    assert "is not the folder of a finished run" in study("plan", file, "--results", results)[2]
    tried = searched_config(SearchSweep.parse(sweep), {"recipe.dropout": 0.1})
    add_run(sweep_folder(results / "toy", sweep), tried, text=data_fingerprint(tried.data))
    assert study("plan", file, "--results", results)[0] == 0


@pytest.mark.parametrize("named", [started, taught])
def test_a_trained_run_of_another_tokeniser_is_refused(
    source: RunFolder, tmp_path: Path, named: Callable[[Path, object], RunConfig]
) -> None:
    other = write_corpus(tmp_path / "other.txt")
    record = trained(tmp_path, named(other, source.path)).record()
    assert record is not None
    assert record.state == "FAILED"
    assert "was trained on other text, with its own vocabulary" in str(record.reason)


@pytest.mark.slow
def test_a_sweep_shows_whether_cut_layers_and_a_teacher_help(
    source: RunFolder, corpus: Path, tmp_path: Path, study: Any
) -> None:
    vary = {
        "recipe.start": ["fresh", str(source.path), f"{source.path}:last"],
        "recipe.teacher": ["none", f"{source.path}:weight=0.5"],
    }
    sweep = sweep_of(corpus, depths=[2], steps=150, vary=vary, seeds=1, first_seed=1)
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))
    refused = study("plan", file, "vary.recipe.start=[fresh, old]")
    assert refused[2].startswith("error: vary.recipe.start: 'old' is neither fresh nor the folder of a run")
    assert f"recipe.start {source.path}: has 4 of the 5 layers" in study("plan", file, "shapes.grid.depth=[5]")[2]
    assert f"start={source.run_id}:last" in study("plan", file)[1]
    tuned = "tune.recipe.learning_rate={low: 0.001, high: 0.1, trials: 4}"
    later = study("plan", file, "shapes.grid.depth=[1, 5]", tuned)
    assert f"recipe.start {source.path}: has 4 of the 5 layers" in later[2], "of shapes that wait for a rate too"
    gone = study("plan", file, f"vary.recipe.start=[runs/{'0' * 16}]")
    assert (gone[0], "is not the folder of a finished run" in gone[2]) == (2, True)
    launched = study("launch", file, "--results", tmp_path / "results", "--no-wandb", "--device", "cpu")
    assert launched[0] == 0, launched[2]
    answer = json.loads(study("report", tmp_path / "results/toy", "--include-unbracketed", "--json")[1])
    of_starts, of_teachers = (
        [p for p in answer["comparisons"]["pairs"] if knob in p["first"]] for knob in ("start", "teacher")
    )
    pairs = [pair for pair in of_starts if "teacher=none" in pair["family"]]
    first, last = f"start={source.run_id}:first", f"start={source.run_id}:last"
    assert [(pair["first"], pair["second"]) for pair in pairs] == [(first, "start=fresh"), (last, "start=fresh"), (last, first)]
    assert pairs[0]["difference"]["estimate_nats"] < -0.1
    lessons = [p for p in of_teachers if "start=fresh" in p["family"]]
    assert [(p["first"], p["second"]) for p in lessons] == [(f"teacher={source.run_id}:weight=0.5", "teacher=none")]
    (line,) = (line for line in answer["findings"]["undecided"] if line.startswith("What another donor would do"))
    assert f"4 runs began with weights of {source.run_id}, whose luck" in line
    (line,) = (line for line in answer["findings"]["undecided"] if line.startswith("What another teacher would do"))
    assert f"3 runs learned from {source.run_id}, whose luck" in line
    flops = {cell["setting"]: cell["train_flops"] for cell in answer["cells"]}
    assert flops[f"start=fresh, teacher={source.run_id}:weight=0.5"] > 1.2 * flops["start=fresh, teacher=none"]
    away = source.path.rename(tmp_path / "away")
    try:
        assert study("plan", file, "--results", tmp_path / "results")[0] == 0, "what is trained asks for no source"
        assert study("plan", file, "--results", tmp_path / "results", "name=other")[0] == 0, "nor what another sweep trained"
    finally:
        away.rename(source.path)


@pytest.mark.slow
def test_a_sweep_shows_which_layers_to_keep_without_training(
    source: RunFolder, corpus: Path, tmp_path: Path, study: Any
) -> None:
    vary = {"recipe.start": [f"{source.path}", f"{source.path}:last"]}
    sweep = sweep_of(corpus, depths=[2, 3, 4], steps=0, vary=vary)
    file, folder = tmp_path / "toy.yaml", tmp_path / "results" / "toy"
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))
    assert "steps 0 trains nothing; set recipe.start to the run" in study("plan", file, "vary.recipe.start=[fresh]")[2]
    assert "5 runs, 0 tokens, 0 FLOPs: about 0 s" in study("plan", file)[1], "all four layers are one run"
    others = [f"{source.path}:last", f"{source.path}:spread"]
    refused = study("plan", file, f"vary.recipe.start={others}", "shapes.grid.depth=[4]")[2]
    assert "train the same runs: both keep the same layers in the same order; keep one of them" in refused
    status, _, errors = study("launch", file, "--results", tmp_path / "results", "--no-wandb", "--device", "cpu")
    assert (status, "Warning" in errors) == (0, False)
    assert "5 COMPLETED of about 5 planned" in study("status", folder)[1]
    environments = [record.environment for record in SweepFolder(folder).records()]
    assert {each.kernels for each in environments if each is not None} == {"eager"}, "by which they were validated"
    answer = json.loads(study("report", folder, "--json")[1])
    assert [(cell["rate_status"], cell["tokens"], cell["seeds"]) for cell in answer["cells"]] == [("untrained", 0, 1)] * 5
    pairs = answer["comparisons"]["pairs"]
    assert len(pairs) == 2
    for pair in pairs:
        actual = pair["difference"]
        half = stats.t.isf(0.025, actual["n_documents"] - 1) * actual["standard_error_sequences_nats"]
        assert actual["high_nats"] - actual["estimate_nats"] == pytest.approx(half, rel=1e-5)
    losses = {f"{cell['shape']} ({cell['setting']})": cell["loss_nats"] for cell in answer["cells"]}
    name = f"L4-H16-A2-F32 (start={source.run_id}:first)"
    whole = losses.pop(name)
    cuts = answer["comparisons"]["cuts"]
    assert [(each["whole"], each["layers"]) for each in cuts] == [(name, layers) for layers in (1, 1, 2, 2)]
    costs = {each["cut"]: each["difference"]["estimate_nats"] for each in cuts}
    assert costs == pytest.approx({cell: loss - whole for cell, loss in losses.items()})
    prefix = "Of L4-H16-A2-F32 (start=first) at 0 steps, cutting off 1 layer"
    (line,) = (line for line in answer["findings"]["loss"] if line.startswith(prefix))
    assert "; cutting off 2 layers costs +" in line
    for layers in (1, 2):
        least = min((each for each in cuts if each["layers"] == layers), key=lambda each: costs[each["cut"]])
        assert f"at the least of 2 ways, {least['cut'].replace(f'{source.run_id}:', '')}" in line
    assert any("nothing was trained" in line for line in answer["findings"]["laws"])
    assert not (folder / "figures" / "loss_against_flops.svg").exists()
    assert (folder / "figures" / "loss_by_depth.svg").exists()
    evidence = gather(SweepFolder(folder))
    assert {evidence.half_width(cell) for cell in evidence.cells} == {None}
    shown = LossBySize("depth").frame(evidence)
    assert shown.groupby("line")["depth"].agg(list).tolist() == [[2, 3, 4]] * 2, "both lines end at the whole"
    assert shown["run_id"].nunique() == 5
