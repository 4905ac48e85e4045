"""What the order of the words is worth to a run: its validation loss with the visible tokens of each sequence permuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from study.base.randomness import Stream, stream_seed
from study.base.schema import deep_merge
from study.base.statistics import variance_of_mean
from study.config.run_config import RunConfig
from study.data.batches import validation_masker
from study.data.prepared import prepare
from study.model.masked_language_model import MaskedLanguageModel
from study.store.run_folder import RunFolder
from study.training.execution import Execution
from study.training.trainer import Training
from tests.small import config, trained, write_corpus
from tests.sweeps import write_topics


@pytest.fixture(scope="module")
def grammar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each word fixes the next but for a choice of two."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, grammar: Path) -> RunFolder:
    return trained(tmp_path_factory.mktemp("reader"), reading(grammar), validations=3)


def reading(corpus: Path, **changes: Any) -> RunConfig:
    """A run that is long enough to read order where the text has any."""
    values = {
        "architecture": {"depth": 1, "width": 32, "ffn": 64, "vocabulary": 100, "position_encoding": "rotary"},
        "recipe": {"learning_rate": 1e-2, "batch_tokens": 512, "budget": {"steps": 300}},
        "data": {"tokenizer": {"vocabulary": 100}, "validation_sequences": 64},
    }
    return config(corpus, **deep_merge(values, changes))


def permuted_losses(run: RunConfig, weights: dict[str, torch.Tensor]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The losses of each validation sequence as it stands and with its visible tokens permuted, one token at a time."""
    prepared = prepare(run.data)
    masker, special = validation_masker(run, prepared), prepared.special.all
    masks, order = (
        torch.Generator().manual_seed(stream_seed(stream)) for stream in (Stream.VALIDATION_MASKS, Stream.VALIDATION_ORDER)
    )
    masked = masker(torch.from_numpy(prepared.validation()), masks)
    keys, permuted = torch.rand(masked.tokens.shape, generator=order), masked.tokens.clone()
    for row, (tokens, positions) in enumerate(zip(masked.tokens.tolist(), masked.positions.tolist(), strict=True)):
        places = [place for place, token in enumerate(tokens) if token not in special and place not in positions]
        for to, place in zip(places, sorted(places, key=lambda place: keys[row, place].item()), strict=True):
            permuted[row, to] = tokens[place]
    model = MaskedLanguageModel(run.architecture).eval()
    model.load_state_dict(weights)
    actual = []
    for tokens_BxS in (masked.tokens, permuted):
        with torch.no_grad():
            logits = model(tokens_BxS, masked.positions)
        nats = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten(), reduction="none")
        actual.append(nats.view(masked.labels.shape).mean(1).double().numpy())
    return actual[0], actual[1]


@pytest.mark.slow
def test_a_run_on_ordered_text_reads_order_and_says_what_it_is_worth(reader: RunFolder, grammar: Path) -> None:
    record = reader.record()
    assert record is not None
    straight, permuted = permuted_losses(record.config, safetensors.torch.load_file(reader.weights_file))
    assert record.loss_nats == pytest.approx(straight.mean(), abs=1e-5)
    assert record.order_gain_nats == pytest.approx((permuted - straight).mean(), abs=1e-4)
    assert record.order_gain_nats is not None
    assert record.order_gain_nats > 0.5
    paired = variance_of_mean(permuted - straight, reader.validation_documents()) ** 0.5
    assert record.order_gain_standard_error_nats == pytest.approx(paired, rel=1e-3)
    assert record.reads_order is True


@pytest.mark.slow
def test_word_order_is_measured_at_every_validation_on_a_quarter_and_at_the_end_on_all(reader: RunFolder) -> None:
    record, rows = reader.record(), [row for row in reader.metrics() if "val/loss" in row]
    assert record is not None
    assert [row["trainer/step"] for row in rows] == [101, 202, 300]
    assert rows[-1]["val/order_gain"] == record.order_gain_nats
    assert rows[-1]["val/order_gain_standard_error"] == record.order_gain_standard_error_nats
    assert rows[0]["val/order_gain"] < rows[-1]["val/order_gain"]
    assert rows[1]["val/order_gain_standard_error"] > 1.3 * rows[2]["val/order_gain_standard_error"], "of 16 and 64 sequences"


@pytest.mark.slow
def test_a_bag_of_words_learns_from_context_and_reads_no_order(tmp_path: Path) -> None:
    """A document, which fills a sequence, has the words of one topic in no order: the loss falls, and none of it is order's."""
    corpus = write_topics(tmp_path / "topics.txt", documents=2000, words=14)
    whole_words = {"vocabulary": 105}
    record = trained(tmp_path, reading(corpus, architecture=whole_words, data={"tokenizer": whole_words})).record()
    assert record is not None
    assert record.loss_nats is not None
    assert record.unigram_entropy_nats is not None
    assert record.loss_nats < record.unigram_entropy_nats - 1
    assert record.order_gain_nats == pytest.approx(0, abs=0.03)
    assert record.reads_order is False
    assert record.exclusion is None, "it stays among the runs"


@pytest.mark.slow
def test_an_encoder_whose_positions_are_all_alike_gains_nothing_from_order(
    reader: RunFolder, grammar: Path, tmp_path: Path
) -> None:
    """Its loss does not hang on the order of its keys but for the rounding of their sums, a few 1e-7 of a sequence's nats."""
    wanted = reading(grammar, architecture={"position_encoding": "learned"})
    weights = MaskedLanguageModel(wanted.architecture, 0.0, seed=3).state_dict()
    learned = safetensors.torch.load_file(reader.weights_file)
    table = "encoder.embeddings.position.weight"
    weights |= learned | {table: torch.zeros_like(weights[table])}
    training = Training(wanted, prepare(wanted.data), RunFolder(tmp_path / "runs" / "zeroed"), Execution())
    actual = training.validated(weights).validation
    assert actual is not None
    assert actual.order_gain == pytest.approx(0, abs=1e-6)
    assert actual.order_gain_standard_error == pytest.approx(0, abs=1e-6)
    with_positions = training.validated(weights | {table: torch.randn_like(weights[table])}).validation
    assert with_positions is not None
    assert (with_positions.order_gain_standard_error or 0) > 1e-3


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_an_encoder_without_positions_gains_exactly_nothing_and_one_with_distances_does(
    precision: str, grammar: Path, tmp_path: Path
) -> None:
    bag = {"position_encoding": "none"}
    short = {"budget": {"steps": 5}, "precision": precision}
    record = trained(tmp_path / "bag", reading(grammar, architecture=bag, recipe=short)).record()
    assert record is not None
    assert (record.order_gain_nats, record.order_gain_standard_error_nats, record.reads_order) == (0.0, 0.0, False)
    near = trained(tmp_path / "near", reading(grammar, architecture=bag | {"distance_bias": "learned"}, recipe=short)).record()
    assert near is not None
    assert near.order_gain_standard_error_nats != 0.0


def test_one_sequence_has_a_gain_and_does_not_say_whether_it_is_chance(grammar: Path, tmp_path: Path) -> None:
    alone = reading(grammar, recipe={"budget": {"steps": 2}}, data={"validation_sequences": 1})
    record = trained(tmp_path / "alone", alone).record()
    assert record is not None
    assert record.order_gain_nats is not None
    assert record.order_gain_standard_error_nats is None
    assert record.reads_order is None


@pytest.mark.slow
def test_a_run_of_no_steps_reads_as_much_order_as_the_one_that_it_starts_from(
    reader: RunFolder, grammar: Path, tmp_path: Path
) -> None:
    again = trained(tmp_path, reading(grammar, recipe={"budget": {"steps": 0}, "start": str(reader.path)}))
    first, second = reader.record(), again.record()
    assert first is not None
    assert second is not None
    assert second.steps == 0
    assert second.order_gain_nats == pytest.approx(first.order_gain_nats, abs=1e-5)
    assert second.order_gain_standard_error_nats == pytest.approx(first.order_gain_standard_error_nats, abs=1e-5)
