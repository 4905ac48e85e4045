"""Objectives over pairs of segments: transformers' own training, the head's cost, and the same validation for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

from study.base.errors import InputError
from study.base.randomness import Stream, stream_seed
from study.config.recipe import Objective
from study.config.run_config import RunConfig
from study.counting.parameters import parameters
from study.data.batches import DataOrder, PackedBatches, training_masker, training_sequences
from study.data.pairs import PackedPairs, Pairs
from study.data.prepared import prepare
from study.model.in_transformers import their_config, their_weights
from study.model.masked_language_model import MaskedLanguageModel, mean_cross_entropy
from study.model.optimization import adamw, learning_rate_factor
from study.model.parametrization import fresh_model
from study.shapes.accounts import resolve_architecture
from study.store.records import validation_of
from study.store.run_folder import RunFolder
from study.training.execution import Execution
from study.training.run import train
from tests.small import config, run_folder, stop_after, trained, write_corpus

OBJECTIVES: tuple[Objective, ...] = ("mlm_nsp", "mlm_sop")
ALBERT = {"embedding_width": 8, "layer_groups": 1}
STEPS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("objectives") / "text.txt")


def of(corpus: Path, objective: str, architecture: dict[str, Any] | None = None, **recipe: Any) -> RunConfig:
    recipe = {"objective": objective, "budget": {"steps": STEPS}} | recipe
    return config(corpus, architecture=architecture or {}, recipe=recipe)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder.weights_file)


@pytest.mark.parametrize(
    ("objective", "name", "architecture"),
    [
        ("mlm_nsp", "BertForPreTraining", {}),
        pytest.param("mlm_nsp", "MegatronBertForPreTraining", {"norm": "pre"}, marks=pytest.mark.slow),
        ("mlm_sop", "AlbertForPreTraining", ALBERT),
    ],
)
def test_a_run_is_trained_as_transformers_trains_its_class(
    objective: str, name: str, architecture: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    """From the same weights, by that class's own loss on the same pairs, to the same weights and pair losses."""
    wanted = of(corpus, objective, architecture)
    folder, prepared, recipe = trained(tmp_path, wanted), prepare(wanted.data), wanted.recipe
    ours = fresh_model(wanted.architecture, recipe, wanted.seed)
    given = their_config(wanted.architecture, prepared.special) | {"classifier_dropout_prob": 0.0}
    made = getattr(transformers, name.replace("ForPreTraining", "Config"))(**given)
    theirs = getattr(transformers, name)(made)
    missing, unexpected = theirs.load_state_dict(their_weights(ours.state_dict(), wanted.architecture), strict=False)
    assert not unexpected
    assert set(missing) <= set(theirs._tied_weights_keys)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == parameters(wanted.architecture).parameters

    text, masker, optimiser = training_sequences(wanted, prepared), training_masker(wanted, prepared), adamw(theirs, recipe)
    assert isinstance(text, PackedPairs)
    order = DataOrder(len(text), wanted.batch_sequences, 0)
    label = "sentence_order_label" if objective == "mlm_sop" else "next_sentence_label"
    for step in range(STEPS):
        pairs = Pairs.of(torch.from_numpy(text.take(order.at(step), order.epochs(step))))
        masked = masker(pairs.tokens, torch.Generator().manual_seed(stream_seed(Stream.MASKS, 0, step)))
        labels = torch.full_like(pairs.tokens, -100).scatter(1, masked.positions, masked.labels)
        given = {"input_ids": masked.tokens, "token_type_ids": pairs.segments, "labels": labels, label: pairs.labels}
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * learning_rate_factor(step, STEPS, recipe)
        optimiser.zero_grad()
        theirs(**given).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), recipe.gradient_clip_norm)
        optimiser.step()

    ended = their_weights(weights(folder), wanted.architecture)
    for weight, tensor in ended.items():
        torch.testing.assert_close(tensor, theirs.state_dict()[weight], atol=1e-5, rtol=0)
    fixed = PackedBatches(wanted, prepared).pairs
    assert fixed is not None
    with torch.no_grad():
        output = theirs.eval()(input_ids=fixed.tokens, token_type_ids=fixed.segments)
    logits = output.sop_logits if objective == "mlm_sop" else output.seq_relationship_logits
    record = folder.record()
    assert record is not None
    assert record.pair_loss_nats == pytest.approx(F.cross_entropy(logits, fixed.labels).item(), abs=1e-5)
    assert record.pair_accuracy == (logits.argmax(1) == fixed.labels).double().mean().item()
    assert record.parameters == parameters(resolve_architecture(str(folder.path), tmp_path).architecture).parameters
    last = [row for row in folder.metrics() if "val/pair_loss" in row][-1]
    assert (last["val/pair_loss"], last["val/pair_accuracy"]) == (record.pair_loss_nats, record.pair_accuracy)
    before = ours.encoder.embeddings.segment
    assert before is not None
    assert (weights(folder)["encoder.embeddings.segment.weight"] - before.weight).abs().amin(1).min() > 0, "both rows move"


def test_objectives_share_their_first_weights_and_their_validation(corpus: Path) -> None:
    """Their losses compare, and differ by the objective alone."""
    plain, *others = (of(corpus, objective) for objective in ("mlm", *OBJECTIVES))
    first, read = fresh_model(plain.architecture, plain.recipe, 0).state_dict(), PackedBatches(plain)
    for other in others:
        own = fresh_model(other.architecture, other.recipe, 0).state_dict()
        assert {name for name in own if name not in first} == {
            f"pair_head.{part}.{kind}" for part in ("pooler", "output") for kind in ("weight", "bias")
        }
        assert all(torch.equal(tensor, own[name]) for name, tensor in first.items())
        batches = PackedBatches(other)
        assert all(map(torch.equal, batches.validation, read.validation))
        assert torch.equal(batches.permuted, read.permuted)
        assert validation_of(other, "text") == validation_of(plain, "text")


@pytest.mark.slow
def test_a_stopped_run_over_pairs_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several epochs of its few pairs."""
    few = write_corpus(tmp_path / "few.txt", 60)
    small: dict[str, Any] = {"data": {"validation_sequences": 4, "tokenizer": {"vocabulary": 128}}}
    wanted = config(few, recipe={"objective": "mlm_nsp", "budget": {"steps": 60}}, architecture={"vocabulary": 128}, **small)
    assert 2 * len(training_sequences(wanted, prepare(wanted.data))) < 8 * 60
    whole, parts = trained(tmp_path / "whole", wanted), run_folder(tmp_path / "parts", wanted)
    with monkeypatch.context() as patch:
        assert train(wanted, parts, "test", Execution(), stop_after(23, patch)) == "PREEMPTED"
    trained(tmp_path / "parts", wanted)
    assert parts.weights_file.read_bytes() == whole.weights_file.read_bytes()
    timings = ("perf/tokens_per_second",)
    one, other = ([{k: v for k, v in row.items() if k not in timings} for row in each.metrics()] for each in (whole, parts))
    assert one == other


def test_a_pair_head_is_left_or_stays_where_a_start_has_another_objective(corpus: Path, tmp_path: Path) -> None:
    plain, judging = (of(corpus, objective).architecture for objective in ("mlm", "mlm_sop"))
    for given, wanted in ((judging, plain), (plain, judging), (judging, judging)):
        start, model = MaskedLanguageModel(given, seed=1), MaskedLanguageModel(wanted, seed=2)
        expected = model.state_dict() | start.state_dict()
        own = {name: tensor.clone() for name, tensor in expected.items() if name in model.state_dict()}
        model.load_trained(start.state_dict())
        assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        model.load_trained({name: tensor for name, tensor in start.state_dict().items() if name != "head.bias"})
    judged = trained(tmp_path, of(corpus, "mlm_nsp"))
    record = trained(tmp_path, of(corpus, "mlm", start=str(judged.path))).record()
    assert record is not None
    assert (record.state, record.pair_accuracy) == ("COMPLETED", None)


@pytest.mark.parametrize(("taught", "teaching"), [("mlm", "mlm_nsp"), pytest.param("mlm_nsp", "mlm", marks=pytest.mark.slow)])
def test_a_run_over_pairs_teaches_and_is_taught(taught: str, teaching: str, corpus: Path, tmp_path: Path) -> None:
    teacher = trained(tmp_path, of(corpus, teaching))
    record = trained(tmp_path, of(corpus, taught, teacher=f"{teacher.path}:weight=0.5")).record()
    assert record is not None
    assert record.state == "COMPLETED", record.reason


@pytest.mark.parametrize(("changes", "message"), [
    ({"architecture": {"segments": 1}}, "reads two segments, but architecture.segments 1; set it to 2"),
    ({"recipe": {"budget": {"steps": 0}, "start": "a/0123456789abcdef"}}, "no head for pairs; leave out recipe.objective"),
])  # fmt: skip
def test_what_does_not_go_with_pairs_is_refused(changes: dict[str, Any], message: str, corpus: Path) -> None:
    with pytest.raises(InputError, match=message):
        config(corpus, **{**changes, "recipe": {"objective": "mlm_nsp"} | changes.get("recipe", {})})


@pytest.mark.parametrize(("right", "loss"), [((0.7,), 0.36), ((0.9, 0.8, 0.6), 0.28), ((0.01,), 4.605)])
def test_worked_examples_of_the_loss_of_pairs(right: tuple[float, ...], loss: float, corpus: Path) -> None:
    """With 0.7 on the right label the loss is −log 0.7 = 0.36, with 0.9, 0.8 and 0.6 (0.11 + 0.22 + 0.51) / 3 = 0.28, and with
    0.01 it is −log 0.01 = 4.605. The loss of masked words is the same of these probabilities.
    """
    model, shares = MaskedLanguageModel(of(corpus, "mlm_nsp").architecture), torch.tensor(right)
    labels = torch.arange(len(right)) % 2
    logits = torch.stack((shares, 1 - shares), 1).log()
    logits = torch.where(labels[:, None] == 1, logits.flip(1), logits)
    with torch.no_grad():
        for name, values in (("pooler", torch.eye(16)), ("output", torch.zeros(2, 16))):
            getattr(model.pair_head, name).weight.copy_(values)
        assert model.pair_head is not None
        model.pair_head.output.weight[:, : len(right)] = 1000 * logits.T
    first = torch.zeros(len(right), 16)
    first[:, : len(right)] = torch.atanh(torch.eye(len(right)) / 1000)
    actual = model.pair_loss(first, labels).item()
    assert actual == pytest.approx(loss, abs=0.005 if loss < 1 else 0.0005)
    expected = F.binary_cross_entropy(shares, torch.ones_like(shares)).item()
    assert actual == pytest.approx(expected, rel=1e-4) == mean_cross_entropy(logits, labels).item()
