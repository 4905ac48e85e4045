"""Replaced token detection: transformers' own ELECTRA trained beside ours, resuming, and what it is not compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from study.base.errors import InputError
from study.base.randomness import Stream, stream_seed
from study.config.run_config import RunConfig
from study.config.sweep import parse_sweep
from study.counting.components import OF_GENERATOR
from study.counting.parameters import parameters
from study.data.batches import DataOrder, PackedBatches, training_masker, training_sequences
from study.data.prepared import prepare
from study.data.token_files import PackedSequences
from study.evidence.downstream import with_comparable_losses
from study.evidence.evidence import gather
from study.evidence.ledgers import validation_columns
from study.evidence.score_points import score_points
from study.model.heads import TaskModel
from study.model.in_transformers import their_config, their_weights
from study.model.masked_language_model import MaskedLanguageModel
from study.model.optimization import adamw, learning_rate_factor
from study.model.parametrization import fresh_model
from study.model.replaced_tokens import DETECTION_WEIGHT, detection, generator_state, sampled
from study.model.transformers_classes import class_for
from study.planning.plan import Plan
from study.report.findings import missing_comparison
from study.scoring.pretrained import Pretrained
from study.scoring.targets import check_tasks
from study.shapes.accounts import resolve_architecture
from study.store.records import validation_of
from study.store.run_folder import RunFolder
from study.training.execution import Execution
from study.training.run import train
from study.training.trained_runs import check_trained_runs
from tests.made_tasks import pairs, task
from tests.small import config, run_folder, stop_after, trained, write_corpus
from tests.sweeps import sweep_values
from tests.synthetic import SWEEP, add_run, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_scores

SIZES = {"width": 32, "heads": 4, "ffn": 64}
STEPS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("replaced") / "text.txt")


def of(corpus: Path, architecture: dict[str, Any] | None = None, **recipe: Any) -> RunConfig:
    recipe = {"objective": "rtd", "budget": {"steps": STEPS}} | recipe
    return config(corpus, architecture=SIZES | (architecture or {}), recipe=recipe)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder.weights_file)


class Electra(nn.Module):
    """Both classes of transformers with our weights, sharing tables and their norm as Clark et al. do."""

    def __init__(self, wanted: RunConfig, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        a, special, family = wanted.architecture, prepare(wanted.data).special, class_for(wanted.architecture)
        assert a.generator is not None
        made = [transformers.ElectraConfig(**their_config(each, special, family=family)) for each in (a, a.generator)]
        self.discriminator = transformers.ElectraForPreTraining(made[0])
        self.generator = transformers.ElectraForMaskedLM(made[1])
        self.load(self.discriminator, their_weights(state, a))
        self.load(self.generator, their_weights(generator_state(state), a.generator, family))
        tables = self.discriminator.electra.embeddings
        tables.word_embeddings.padding_idx = None  # random tokens may be [PAD], whose row would have no gradient
        self.generator.electra.embeddings = tables
        self.generator.generator_lm_head.weight = tables.word_embeddings.weight

    @staticmethod
    def load(model: Any, given: dict[str, torch.Tensor]) -> None:
        missing, unexpected = model.load_state_dict({name: each.clone() for name, each in given.items()}, strict=False)
        assert not unexpected
        assert set(missing) <= set(model._tied_weights_keys or ())


@pytest.mark.parametrize(("architecture", "recipe"), [
    ({}, {}),
    ({"embedding_width": 16, "activation": "relu"}, {"generator_share": 0.5}),
    ({}, {"generator_share": 1, "masking": {"rate": 0.3}}),
])  # fmt: skip
def test_a_run_is_trained_as_transformers_trains_both_its_classes(
    architecture: dict[str, Any], recipe: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    """From the same weights to the same weights and losses, with the tokens drawn from their generator's own logits."""
    wanted = of(corpus, architecture, **recipe)
    folder, prepared = trained(tmp_path, wanted), prepare(wanted.data)
    ours = fresh_model(wanted.architecture, wanted.recipe, wanted.seed)
    theirs = Electra(wanted, ours.state_dict())
    assert sum(each.numel() for each in theirs.parameters()) == parameters(wanted.architecture).parameters

    masker, optimiser, text = (
        training_masker(wanted, prepared),
        adamw(theirs, wanted.recipe),
        training_sequences(wanted, prepared),
    )
    assert isinstance(text, PackedSequences)
    order, draw = DataOrder(len(text), wanted.batch_sequences, 0), torch.Generator()
    for step in range(STEPS):
        tokens = torch.from_numpy(text.take(order.at(step)))
        masked = masker(tokens, draw.manual_seed(stream_seed(Stream.MASKS, 0, step)))
        labels = torch.full_like(tokens, -100).scatter(1, masked.positions, masked.labels)
        output = theirs.generator(input_ids=masked.tokens, labels=labels)
        shares = torch.softmax(output.logits.detach().gather(1, masked.positions[..., None].expand(-1, -1, 200)), -1)
        draws = torch.rand(masked.positions.shape, generator=draw)
        drawn = (shares.double().cumsum(-1) <= draws[..., None].double()).sum(-1)
        read = tokens.scatter(
            1, masked.positions, torch.where(masked.labels == -100, tokens.gather(1, masked.positions), drawn)
        )
        logits = theirs.discriminator(input_ids=read).logits
        ordinary = ~torch.isin(tokens, torch.tensor(prepared.special.all))
        detection_loss = F.binary_cross_entropy_with_logits(
            logits[ordinary], (read != tokens)[ordinary].float(), reduction="sum"
        )
        for group in optimiser.param_groups:
            group["lr"] = wanted.recipe.learning_rate * learning_rate_factor(step, STEPS, wanted.recipe)
        optimiser.zero_grad()
        torch.autograd.backward(output.loss + DETECTION_WEIGHT * detection_loss / tokens.numel())
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), wanted.recipe.gradient_clip_norm)
        optimiser.step()

    ended = Electra(wanted, weights(folder))
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ended.state_dict()[name], tensor, atol=1e-5, rtol=0)
    fixed, record = PackedBatches(wanted, prepared), folder.record()
    assert record is not None
    assert fixed.draws is not None
    with torch.no_grad():
        masked = fixed.validation
        labels = torch.full_like(masked.tokens, -100).scatter(1, masked.positions, masked.labels)
        generated = theirs.eval().generator(input_ids=masked.tokens, labels=labels)
    assert record.generator_loss_nats == pytest.approx(generated.loss.item(), abs=1e-5)
    assert record.parameters == parameters(resolve_architecture(str(folder.path), tmp_path).architecture).parameters
    last = [row for row in folder.metrics() if "val/generator_loss" in row][-1]
    assert (last["val/loss"], last["val/generator_loss"]) == (record.loss_nats, record.generator_loss_nats)
    assert record.bits_per_masked_byte is None
    assert record.accuracy is not None
    assert record.accuracy > 0.5


@pytest.mark.parametrize("architecture", [
    {},
    pytest.param({"embedding_width": 8, "activation": "gelu_tanh"}, marks=pytest.mark.slow),
    pytest.param({"tied_decoder": False}, marks=pytest.mark.slow),
])  # fmt: skip
def test_both_encoders_are_exported_and_opened_by_transformers(
    study: Any, architecture: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    wanted = of(corpus, architecture, dropout=0.1)
    run, into = trained(tmp_path / "results" / "toy", wanted), tmp_path / "electra"
    status, out, err = study("export", run.path, "--into", into)
    assert (status, err) == (0, "")
    a, ours = wanted.architecture, Pretrained(run).masked_language_model()
    assert a.generator is not None
    own = sum(each.count for each in parameters(a).components if not each.name.startswith(OF_GENERATOR))
    its = parameters(a.generator).parameters
    assert [line.partition(";")[0] for line in out.splitlines()] == [
        f"{own:,} parameters: {into}/discriminator",
        f"{its:,} parameters: {into}/generator",
    ]
    read = AutoTokenizer.from_pretrained(into / "discriminator")(["kame gila", "nome"], padding=True, return_tensors="pt")
    tokens, attended = read["input_ids"], read["attention_mask"].bool()
    for opener, part, expected in (
        (AutoModelForPreTraining, "discriminator", ours.detection_logits(tokens, None, attended)),
        (AutoModelForMaskedLM, "generator", ours(tokens, None, None, attended)),
    ):
        theirs, report = opener.from_pretrained(into / part, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert type(theirs).__name__ == {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}[part]
        torch.testing.assert_close(theirs.eval()(**read).logits[attended], expected[attended], atol=1e-5, rtol=0)
    bare = AutoModel.from_pretrained(into / "discriminator").eval()(**read).last_hidden_state
    torch.testing.assert_close(bare[attended], ours.encoder(tokens, None, attended)[attended], atol=1e-5, rtol=0)
    cards = {part: (into / part / "README.md").read_text() for part in ("discriminator", "generator")}
    for part, kind, size in (
        ("discriminator", "feature-extraction", f"detect replaced tokens of {own:,}"),
        ("generator", "fill-mask", f"the generator of an encoder that detects replaced tokens, of {its:,}"),
    ):
        assert (f"pipeline_tag: {kind}\n" in cards[part], f"{size} parameters" in cards[part]) == (True, True)
        assert ("token, of detecting whether it was replaced" in cards[part]) is (part == "discriminator")
    assert f"# {a.generator.shape_name}\n" in cards["generator"]


def test_an_encoder_that_no_electra_computes_is_not_exported(study: Any, corpus: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "results" / "toy", of(corpus, {"norm": "pre"}))
    status, _, err = study("export", run.path, "--into", tmp_path / "electra")
    assert status == 2
    assert err == "error: architecture: has norm pre, which no ElectraForPreTraining has\n"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [
    {"dropout": 0.1},
    {"masking": {"static_copies": 2}, "packing": "doc_sentences"},
    {"optimizer": "muon", "packing": "segment_pairs", "residual_initialisation": "zero"},
])  # fmt: skip
def test_a_stopped_run_resumes_to_the_same_bits(
    recipe: dict[str, Any], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = of(corpus, **(recipe | {"budget": {"steps": 12}}))
    whole, parts = trained(tmp_path / "whole", wanted), run_folder(tmp_path / "parts", wanted)
    with monkeypatch.context() as patch:
        assert train(wanted, parts, "test", Execution(), stop_after(7, patch)) == "PREEMPTED"
    trained(tmp_path / "parts", wanted)
    assert parts.weights_file.read_bytes() == whole.weights_file.read_bytes()
    one, other = (
        [{k: v for k, v in row.items() if not k.startswith("perf/")} for row in each.metrics()] for each in (whole, parts)
    )
    assert one == other


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    shares = torch.tensor([0.1, 0.0, 0.6, 0.3])
    draws = (torch.arange(1000) + 0.5) / 1000
    draws_taken = sampled(shares.log().expand(1000, -1), draws)
    assert torch.equal(draws_taken.bincount(minlength=4), (1000 * shares).long())
    ends = sampled(torch.randn(2, 50_000).mul(5).requires_grad_(), torch.tensor([0.0, 1 - 2**-24]))
    assert not ends.requires_grad
    assert 0 <= ends.min() <= ends.max() < 50_000


def test_a_token_that_was_drawn_as_it_was_counts_as_unchanged() -> None:
    """By hand: −log σ(2) = 0.1269 where the change is seen, −log σ(−2) = 2.1269 where it is not, and [CLS] never counts."""
    logits, changed = torch.tensor([[9.0, 2.0, 2.0, -2.0]]), torch.tensor([[False, True, False, False]])
    counted = torch.tensor([[False, True, True, True]])
    actual = detection(logits, changed, counted)
    assert actual.nats.tolist()[0] == pytest.approx([0.0, 0.1269, 2.1269, 0.1269], abs=1e-4)
    assert actual.correct.tolist() == [[False, True, False, True]]
    assert actual.loss.item() == pytest.approx((0.1269 * 2 + 2.1269) / 4, abs=1e-4)


def test_the_detector_teaches_its_generator_nothing(corpus: Path) -> None:
    """The gradient of the detection stops at the drawn tokens: it reaches the tables, but no weight of the generator alone."""
    model = MaskedLanguageModel(of(corpus).architecture)
    tokens = torch.randint(5, 200, (2, 16))
    torch.autograd.backward(model.detection_logits(tokens).sum())
    reached = {name for name, each in model.named_parameters() if each.grad is not None}
    assert reached == {name for name, _ in model.named_parameters() if name.startswith(("encoder.", "detector."))}


def test_its_loss_is_compared_with_no_loss_of_masked_words(corpus: Path) -> None:
    detecting, plain, paired = of(corpus), of(corpus, objective="mlm"), of(corpus, objective="mlm_nsp")
    assert validation_of(detecting, "text") != validation_of(plain, "text") == validation_of(paired, "text")
    own, other = PackedBatches(detecting), PackedBatches(plain)
    assert all(map(torch.equal, own.validation, other.validation))
    assert own.words is None


@pytest.mark.slow
def test_a_start_hands_over_the_encoder_alone_between_objectives(corpus: Path, tmp_path: Path) -> None:
    given = {True: trained(tmp_path, of(corpus)), False: trained(tmp_path, of(corpus, objective="mlm"))}
    for detects, start in given.items():
        wanted = of(corpus, objective="mlm" if detects else "rtd", start=str(start.path), learning_rate=1e-12, weight_decay=0)
        begun, ended = weights(start), weights(trained(tmp_path, wanted))
        fresh = fresh_model(wanted.architecture, wanted.recipe, wanted.seed).state_dict()
        for name, tensor in ended.items():
            expected = begun[name] if name.startswith("encoder.") else fresh[name]
            torch.testing.assert_close(tensor, expected, atol=1e-6, rtol=0)
    again = trained(tmp_path, of(corpus, start=str(given[True].path), learning_rate=1e-12, weight_decay=0))
    for name, tensor in weights(again).items():
        torch.testing.assert_close(tensor, weights(given[True])[name], atol=1e-6, rtol=0)


def test_a_task_begins_with_the_detecting_encoder(corpus: Path, tmp_path: Path) -> None:
    run = Pretrained(trained(tmp_path, of(corpus)))
    model = TaskModel(run.config.architecture, 200, "sequence", 2)
    model.load_encoder(run.state(), torch.arange(200))
    tokens = torch.randint(5, 200, (2, 16))
    assert torch.equal(model.eval().encoder(tokens), run.masked_language_model().encoder(tokens))
    assert not any(name.startswith("generator") for name, _ in model.named_parameters())


@pytest.mark.parametrize(("changes", "message"), [
    ({"recipe": {"parametrization": "completep", "base_width": 16}}, "no rule for objective rtd, whose two encoders share"),
    ({"recipe": {"teacher": "a/0123456789abcdef"}}, "masked words, which objective rtd does not learn"),
    ({"recipe": {"budget": {"steps": 0}, "start": "a/0123456789abcdef"}}, "trains no generator; leave out recipe.objective"),
    ({"architecture": {"position_encoding": "rotary"}, "recipe": {"generator_share": 0.1}}, "generator_share 0.1 makes a gen"),
])  # fmt: skip
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], message: str, corpus: Path) -> None:
    with pytest.raises(InputError, match=message):
        config(corpus, architecture=SIZES | changes.get("architecture", {}), recipe={"objective": "rtd"} | changes["recipe"])


@pytest.mark.parametrize(("knobs", "message"), [
    ({"teacher": "{}"}, "detects replaced tokens (objective rtd) and predicts none"),
    ({"start": "{}", "budget": {"steps": 0}}, "detects replaced tokens (objective rtd) and predicts none"),
    ({"start": "{}:grow=even"}, "cannot grow or get narrower tables from or into objective rtd"),
])  # fmt: skip
def test_what_its_runs_cannot_serve_is_refused(knobs: dict[str, Any], message: str, corpus: Path, tmp_path: Path) -> None:
    run = trained(tmp_path, of(corpus))
    given: dict[str, Any] = {name: value.format(run.path) if isinstance(value, str) else value for name, value in knobs.items()}
    with pytest.raises(InputError) as refusal:
        check_trained_runs([of(corpus, objective="mlm", **given)])
    assert message in str(refusal.value)


def test_a_sweep_compares_its_scores_and_no_losses_beside_masked_words(tmp_path: Path) -> None:
    values = {name: value for name, value in SWEEP.items() if name != "tune"} | {"vary": {"recipe.objective": ["mlm", "rtd"]}}
    folder = sweep_folder(tmp_path / "sweep", values)
    for objective in ("mlm", "rtd"):
        for seed in (0, 1):
            add_run(folder, run_config(2, 64, seed=seed, objective=objective))
    folder.write_ledger()
    evidence = gather(folder)
    reason = (
        "the loss of objective rtd is of detecting replaced tokens, and of others of predicting masked words; compare scores"
    )
    assert missing_comparison(evidence) == f"variants are not compared: {reason}"
    assert not evidence.comparisons.pairs
    assert "recipe.objective" in validation_columns(evidence.ledger)
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    points = score_points(folder, evidence.ledger)
    assert len(points) == 2
    assert len(with_comparable_losses(points)) == 1


def test_a_task_that_reads_the_head_is_refused_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task("minimal_pairs", ["accuracy"], pairs(["one", "one"]))
    monkeypatch.setattr("study.scoring.targets.load_tasks", lambda _: {"grammar": made})
    values = sweep_values(tmp_path / "text.txt", vary={"recipe.objective": ["mlm", "rtd"]})
    spec = parse_sweep(values | {"downstream": ["grammar"]})
    assert spec.downstream is not None
    with pytest.raises(InputError, match=r"reads the MLM head, which runs of objective rtd lack; leave out the task"):
        check_tasks(spec.downstream, lambda: Plan(spec).first_runs)
