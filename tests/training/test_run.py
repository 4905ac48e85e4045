"""One run: what it writes, that it resumes bit for bit, and how it ends when things go wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import safetensors.torch
import torch
import torch.nn.functional as F
from torch._inductor.exc import InductorError

from study.base import durable_files
from study.base.durable_files import PATIENCE_SECONDS, write_atomically
from study.base.errors import InputError
from study.base.randomness import Stream, stream_seed
from study.base.schema import deep_merge
from study.base.statistics import variance_of_mean
from study.config.recipe import Initialisation
from study.config.run_config import Masking, RunConfig
from study.data.batches import PackedBatches
from study.data.masking import Masker
from study.data.prepared import prepare
from study.data.token_files import PackedSequences
from study.model.layers import Linear
from study.model.lightning import HOOK, MaskedLanguageModelling
from study.model.masked_language_model import MaskedLanguageModel
from study.store.ownership import Attempt
from study.store.records import State
from study.store.run_folder import RunFolder
from study.store.work_folder import checkpoints_in, step_of
from study.training.attempts import StopSignal
from study.training.callbacks import Checkpointer, Watchdog
from study.training.checkpoints import POSTPONABLE, DurableCheckpointIO, newest_whole_checkpoint, precision_of, resumed
from study.training.execution import Execution
from study.training.run import Outcome, failure_of, tidy, train
from study.training.trainer import Training
from tests.ranks import ranks_said
from tests.small import ORDERED, SHARED, config, overflow_at, run_folder, stop_after, trained, write_corpus
from tests.sweeps import write_topics
from tests.waiting import ImpatientClock, until

TIMINGS = ("perf/tokens_per_second",)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


def brief(corpus: Path, **changes: Any) -> RunConfig:
    """A run of twelve steps."""
    return config(corpus, **deep_merge({"recipe": {"budget": {"steps": 12}}}, changes))


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in folder.metrics()]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder.weights_file)


def test_a_run_writes_its_folder(corpus: Path, tmp_path: Path) -> None:
    folder = trained(tmp_path, config(corpus), validations=3)
    record = folder.record()
    assert record is not None
    assert record.state == "COMPLETED"
    assert RunConfig.from_yaml(folder.config_file) == record.config == config(corpus)
    assert (record.steps, record.tokens, record.attempts) == (30, 30 * 128, 1)
    losses = folder.validation_losses()
    assert losses.shape == (32,)
    assert record.validation_masked_tokens == 32 * 2
    assert record.loss_nats == pytest.approx(losses.sum() / 64, abs=1e-12)
    documents, prepared = folder.validation_documents(), prepare(config(corpus).data)
    assert documents is not None
    assert (documents == prepared.validation_documents()).all()
    assert record.validation_documents == len(set(documents.tolist())) < 32
    assert record.loss_standard_error_nats == pytest.approx(variance_of_mean(losses / 2, documents) ** 0.5)
    assert record.validation_overlap_share == prepared.validation_overlap_share
    validated = [row["trainer/step"] for row in folder.metrics() if "val/loss" in row]
    assert validated == [11, 22, 30]
    assert not list(folder.checkpoints.glob("*"))
    assert sum(tensor.numel() for tensor in weights(folder).values()) == record.parameters


@pytest.mark.parametrize(
    ("limit", "initialisation", "masking"),
    [pytest.param(0.4, "bert", {}, marks=pytest.mark.slow), (0, "unit_stream", {"rate": 0.25, "mask_share": 0.5})],
)
def test_a_run_is_the_plain_loop_that_its_recipe_states(
    limit: float, initialisation: Initialisation, masking: dict[str, float], tmp_path: Path
) -> None:
    """Order, masks, dropout and validation from their own streams over two epochs, and torch's AdamW, clipped or not."""
    optimiser = {"learning_rate": 1e-2, "beta1": 0.8, "beta2": 0.7, "epsilon": 1e-3, "weight_decay": 0.5}
    recipe = optimiser | {"gradient_clip_norm": limit, "warmup_fraction": 0.2, "dropout": 0.1, "budget": {"steps": 100}}
    recipe |= {"initialisation": initialisation, "masking": masking}
    sizes = {"depth": 1, "vocabulary": 128, "embedding_width": 8}
    data = {"tokenizer": {"vocabulary": 128}, "validation_sequences": 16}
    wanted = config(write_corpus(tmp_path / "few.txt", 200), recipe=recipe, architecture=sizes, data=data, seed=3)
    folder = trained(tmp_path, wanted, kernels="eager", validations=1)

    prepared = prepare(wanted.data)
    train, validating = prepared.split("train"), Masker(Masking(), 2, 4, special_tokens=(0, 1, 2, 3, 4), vocabulary=128)
    masker = replace(validating, masking=Masking(**masking), predictions=4 if masking else 2)
    seeds = [stream_seed(Stream.DATA_ORDER, 3, epoch) for epoch in range(2)]
    order = np.concatenate([np.random.Generator(np.random.PCG64(seed)).permutation(len(train)) for seed in seeds])
    assert len(train) < 800 <= len(order)
    model = MaskedLanguageModel(wanted.architecture, 0.1, 3, initialisation)
    groups = [
        {"params": [p for p in model.parameters() if (p.ndim == 2) == decays], "weight_decay": 0.5 * decays}
        for decays in (True, False)
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.7), eps=1e-3)
    losses, rates = [], []
    for step in range(100):
        rates.append(1e-2 * min((step + 1) / 21, (100 - step) / 80))
        for group in adamw.param_groups:
            group["lr"] = rates[-1]
        batch = torch.from_numpy(train.take(order[8 * step : 8 * step + 8]))
        masked = masker(batch, torch.Generator().manual_seed(stream_seed(Stream.MASKS, 3, step)))
        torch.manual_seed(stream_seed(Stream.DROPOUT, 3, step, 0))
        logits = model(masked.tokens, masked.positions)
        loss = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten())
        adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit or float("inf"))
        adamw.step()
        losses.append(loss.item())
    fixed = validating(
        torch.from_numpy(prepared.validation()), torch.Generator().manual_seed(stream_seed(Stream.VALIDATION_MASKS))
    )
    logits = model.eval()(fixed.tokens, fixed.positions)
    nats = F.cross_entropy(logits.flatten(0, 1), fixed.labels.flatten(), reduction="none").view(16, 2).sum(1)

    logged = [row for row in folder.metrics() if "train/loss" in row]
    assert [row["train/loss"] for row in logged] == pytest.approx(np.reshape(losses, (50, 2)).mean(1).tolist(), rel=1e-3)
    assert [row["recipe/learning_rate"] for row in logged] == pytest.approx(rates[1::2])
    np.testing.assert_allclose(folder.validation_losses(), nats.detach().numpy(), rtol=1e-3)
    record = folder.record()
    assert record is not None
    assert record.accuracy == (logits.argmax(-1) == fixed.labels).double().mean().item() > 0
    assert record.train_loss_nats == logged[-1]["train/loss"]
    assert record.train_flops == pytest.approx(logged[-1]["trainer/flops"])


def test_lightning_keeps_its_hook_where_it_is_set_at_once() -> None:
    assert HOOK in vars(pl.LightningModule())


@pytest.mark.parametrize(("asked", "supported", "used"), [
    ("auto", True, "bf16"), ("auto", False, "fp32"), ("fp32", True, "fp32"), ("bf16", False, "bf16"),
])  # fmt: skip
def test_auto_is_bf16_where_the_processor_multiplies_in_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, supported: bool, used: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    products = []
    forward = Linear.forward

    def seen(self: Linear, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        products.append(y.dtype)
        return y

    monkeypatch.setattr(Linear, "forward", seen)
    record = trained(tmp_path, config(corpus, recipe={"precision": asked, "budget": {"steps": 2}})).record()
    assert record is not None
    assert record.environment is not None
    assert record.environment.precision == used
    assert set(products) == {torch.bfloat16 if used == "bf16" else torch.float32}


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_resumed_on_another_processor_keeps_its_precision(
    first: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = brief(corpus, recipe={"precision": "auto"})

    def on(supported: bool) -> None:
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)

    on(first)
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        trained(tmp_path / "stopped", wanted, stop_after(7, patch))
    on(not first)
    resumed = trained(tmp_path / "stopped", wanted)
    assert resumed.weights_file.read_bytes() == straight.weights_file.read_bytes()
    record = resumed.record()
    assert record is not None
    assert record.environment is not None
    assert (record.attempts, record.environment.precision) == (2, "bf16" if first else "fp32")


def test_how_a_checkpoint_was_trained_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"global_step": 3, "precision": "bf16-mixed", "threads": 5}
    DurableCheckpointIO().save_checkpoint(stored, tmp_path / "next.ckpt")
    opened, load = [], torch.load

    def counted(file: Path, **options: Any) -> Any:
        opened.append(file)
        return load(file, **options)

    monkeypatch.setattr(torch, "load", counted)
    newest = newest_whole_checkpoint(tmp_path)
    assert resumed(Execution(threads=1), newest).threads == 5
    assert (precision_of("auto", newest, "cpu"), precision_of("fp32", newest, "cpu")) == ("bf16", "fp32")
    assert len(opened) == 1
    DurableCheckpointIO().save_checkpoint(stored | {"global_step": 4, "threads": 2}, tmp_path / "next.ckpt")
    assert resumed(Execution(threads=1), newest_whole_checkpoint(tmp_path)).threads == 2


@pytest.mark.slow
def test_a_run_resumed_on_other_cores_keeps_its_number_of_threads(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in other parts round otherwise."""
    wanted = brief(corpus)
    with monkeypatch.context() as patch:
        trained(tmp_path, wanted, stop_after(7, patch), threads=2)
    counts: list[int] = []
    original = MaskedLanguageModelling.training_step

    def counted(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        counts.append(torch.get_num_threads())
        return original(self, batch, batch_idx)

    monkeypatch.setattr(MaskedLanguageModelling, "training_step", counted)
    record = trained(tmp_path, wanted, threads=1).record()
    assert record is not None
    assert record.environment is not None
    assert ({*counts}, record.attempts, record.environment.threads) == ({2}, 2, 2)


@pytest.mark.slow
def test_training_beats_the_unigram_entropy_where_context_helps(tmp_path: Path) -> None:
    """The words of a topic are an eighth of all: who knows the topic is ln 8 = 2.1 nats below the entropy."""
    corpus = write_topics(tmp_path / "topics.txt")
    recipe = {"budget": {"steps": 300}, "learning_rate": 1e-2, "batch_tokens": 256}
    sizes, data = {"depth": 1, "width": 32, "ffn": 64, "vocabulary": 100}, {"tokenizer": {"vocabulary": 100}}
    record = trained(tmp_path, config(corpus, recipe=recipe, architecture=sizes, data=data)).record()
    assert record is not None
    assert record.loss_nats is not None
    assert record.unigram_entropy_nats is not None
    assert record.loss_nats < record.unigram_entropy_nats - 1


@pytest.mark.parametrize(("steps", "validations", "expected"), [(1, 5, [1]), (6, 4, [2, 4, 6]), (7, 2, [4, 7]), (12, 1, [12])])
def test_each_step_is_validated_once_and_the_last_one_always(
    steps: int, validations: int, expected: list[int], corpus: Path, tmp_path: Path
) -> None:
    folder = trained(tmp_path, config(corpus, recipe={"budget": {"steps": steps}}), validations=validations)
    assert [row["trainer/step"] for row in folder.metrics() if "val/loss" in row] == expected


def test_what_training_masks_is_nothing_to_validation(corpus: Path, tmp_path: Path) -> None:
    """The same weights have the same losses, and the record counts the FLOPs of what training masks."""
    plain = trained(tmp_path, config(corpus, recipe={"budget": {"steps": 2}}))
    steps, start = {"steps": 0}, str(plain.path)
    masking = {"rate": 0.4, "whole_words": True, "static_copies": 10}
    again = trained(tmp_path, config(corpus, recipe={"budget": steps, "start": start, "masking": masking}))
    assert np.array_equal(again.validation_losses(), plain.validation_losses())
    own, record = (
        trained(tmp_path, config(corpus, recipe={"budget": {"steps": 2}, "masking": masking})).record(),
        plain.record(),
    )
    assert own is not None
    assert record is not None
    assert own.validation_masked_tokens == record.validation_masked_tokens == 64
    head = 16 * 16 + 200 * 16
    assert own.train_flops - record.train_flops == 6 * (6 - 2) * head * 16  # sequences of two batches


@pytest.mark.parametrize("packing", ["full_sentences", "doc_sentences", "segment_pairs"])
def test_a_run_reads_no_more_than_its_unique_tokens(packing: str, corpus: Path) -> None:
    wanted = config(corpus, recipe={"packing": packing, "unique_tokens": 800})
    train = PackedBatches(wanted).train
    read = (train.rows if isinstance(train, PackedSequences) else train.stream).ravel()
    assert len(read) > 730
    assert read.tolist() == prepare(wanted.data).with_unique_tokens(800).stream("train")[: len(read)].tolist()


def test_a_record_counts_the_unique_tokens_of_its_run(corpus: Path, tmp_path: Path) -> None:
    folder = trained(tmp_path, config(corpus, recipe={"unique_tokens": 800, "budget": {"steps": 2}}))
    record = folder.record()
    assert record is not None
    assert record.train_tokens == 750
    assert record.data_fingerprint == prepare(record.config.data).fingerprint


def test_a_run_with_a_record_is_not_trained_again(corpus: Path, tmp_path: Path) -> None:
    folder = trained(tmp_path, brief(corpus))
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir() if path.is_file()}
    trained(tmp_path, brief(corpus))
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir() if path.is_file()} == before
    assert folder.attempts() == 1


RESUMED: list[dict[str, Any]] = [
    {},
    {"recipe": {"schedule": "cosine", "dropout": 0.1}},
    {"recipe": {"schedule": "wsd", "precision": "bf16", "dropout": 0.1}},
    {"architecture": {"norm": "pre"}, "data": {"corpus": "few"}},
    {"architecture": SHARED, "recipe": {"precision": "bf16", "dropout": 0.1}},
    {"architecture": ORDERED, "recipe": {"residual_initialisation": "zero"}},
    {"recipe": {"masking": {"rate": 0.3, "whole_words": True, "static_copies": 2}, "unique_tokens": 500}},
    {"architecture": SHARED, "recipe": {"optimizer": "muon", "schedule": "wsd", "weight_decay": 0.1}},
]

SOON = (7,)
"""Those that the fast tests stop at step 7: a run of AdamW is stopped at step 11."""


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        *(pytest.param(changes, 7, marks=[] if number in SOON else pytest.mark.slow) for number, changes in enumerate(RESUMED)),
        *(pytest.param(changes, 11, marks=pytest.mark.slow if changes else []) for changes in RESUMED),
    ],
)
def test_a_stopped_run_resumes_bit_for_bit(
    changes: dict[str, Any], step: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, learning rates, gradients, weights; step 11 is one after which validation is due; few documents make epochs."""
    if "data" in changes:
        few = write_corpus(tmp_path / "few.txt", documents=60)
        vocabulary = {"tokenizer": {"vocabulary": 128}}
        changes = changes | {"data": {"corpus": str(few), "validation_sequences": 4} | vocabulary}
        changes["architecture"] = changes["architecture"] | {"vocabulary": 128}
    wanted = config(corpus, **changes)
    undisturbed = trained(tmp_path / "undisturbed", wanted, validations=3)
    with monkeypatch.context() as patch:
        stopped = trained(tmp_path / "stopped", wanted, stop_after(step, patch), validations=3)
    assert stopped.record() is None
    (checkpoint,) = checkpoints_in(stopped.checkpoints)
    assert f"-{step + (step == 11):010d}-" in checkpoint.name
    trained(tmp_path / "stopped", wanted, validations=3)
    assert rows(stopped) == rows(undisturbed)
    ours, theirs = weights(stopped), weights(undisturbed)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert np.array_equal(stopped.validation_losses(), undisturbed.validation_losses())
    record = stopped.record()
    assert record is not None
    assert record.attempts == 2


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = brief(corpus)
    undisturbed = trained(tmp_path / "undisturbed", wanted)
    for step in (4, 8):
        with monkeypatch.context() as patch:
            stopped = trained(tmp_path / "stopped", wanted, stop_after(step, patch))
    first, second = checkpoints_in(stopped.checkpoints)
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(content)
    with pytest.warns(UserWarning, match=second.name):
        assert newest_whole_checkpoint(stopped.checkpoints) == first
    assert second.with_suffix(".damaged").exists()
    trained(tmp_path / "stopped", wanted)
    assert rows(stopped) == rows(undisturbed)
    assert all(torch.equal(tensor, weights(undisturbed)[name]) for name, tensor in weights(stopped).items())


def test_two_checkpoints_are_kept_and_a_failed_write_leaves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = DurableCheckpointIO()
    for step in (1, 2, 3):
        writer.save_checkpoint({"global_step": step, "x": torch.ones(3)}, tmp_path / "next.ckpt")
    kept = checkpoints_in(tmp_path)
    assert [int(path.name.split("-")[1]) for path in kept] == [2, 3]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        writer.save_checkpoint({"global_step": 4, "x": torch.ones(3)}, tmp_path / "next.ckpt")
    assert sorted(tmp_path.iterdir()) == kept
    assert newest_whole_checkpoint(tmp_path) == kept[-1]


@pytest.mark.parametrize("mask", [0o002, 0o077])
def test_a_checkpoint_is_open_to_whom_the_umask_opens_files(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        DurableCheckpointIO().save_checkpoint({"global_step": 1}, tmp_path / "next.ckpt")
    finally:
        os.umask(before)
    (saved,) = checkpoints_in(tmp_path)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o666 & ~mask


def test_a_checkpoint_is_postponed_while_its_folder_is_out_of_reach_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, now = DurableCheckpointIO(), 1000.0
    monkeypatch.setattr("study.training.checkpoints.time.monotonic", lambda: now)

    def save() -> None:
        writer.save_checkpoint({"global_step": 1, "x": torch.ones(3)}, tmp_path / "next.ckpt", POSTPONABLE)

    def out_of_reach(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", out_of_reach)
            for pause in (0, PATIENCE_SECONDS):
                now += pause
                with pytest.warns(UserWarning, match="the checkpoint of step 1 is postponed"):
                    save()
                assert not writer.saved
        save()
        assert writer.saved
    monkeypatch.setattr(os, "fsync", out_of_reach)
    with pytest.warns(UserWarning, match="is postponed"):
        save()
    now += PATIENCE_SECONDS + 1
    with pytest.raises(OSError, match="Input/output error"):
        save()


def test_a_run_whose_text_has_changed_since_it_was_planned_is_not_trained_under_its_id(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt")
    wanted = brief(corpus)
    folder = run_folder(tmp_path, wanted)
    text = corpus.read_text()
    write_corpus(corpus, seed=1)
    execution = Execution(threads=1)
    assert train(wanted, folder, "toy", execution, StopSignal()) == "FAILED"
    record = folder.record()
    assert record is not None
    assert record.reason is not None
    assert record.reason.startswith(f"data.corpus: {corpus} has changed since the run was planned; restore it")
    assert record.steps == 0
    corpus.write_text(text)
    folder.put_record_aside({})
    assert train(wanted, folder, "toy", execution, StopSignal()) == "COMPLETED"


def test_a_torn_row_is_repaired_and_later_rows_are_not_kept(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = brief(corpus)
    with monkeypatch.context() as patch:
        stopped = trained(tmp_path, wanted, stop_after(9, patch))
    with stopped.metrics_file.open("ab") as file:
        file.write(b'{"trainer/step": 10, "train/loss": 9.0}\n{"trainer/st')
    trained(tmp_path, wanted)
    logged = [row["trainer/step"] for row in stopped.metrics() if "train/loss" in row]
    assert logged == list(range(1, 13))


def test_a_run_that_was_replaced_before_its_first_step_leaves_the_rows_of_the_other_attempt(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, row, module_of = config(corpus), b'{"trainer/step": 7, "train/loss": 5.0}\n', Training._module
    folder = run_folder(tmp_path, wanted)

    def replaced(*arguments: Any) -> MaskedLanguageModelling:
        Attempt.begin(folder)
        folder.metrics_file.write_bytes(row)
        return module_of(*arguments)

    monkeypatch.setattr(Training, "_module", replaced)
    assert train(wanted, folder, "test", Execution(), StopSignal()) == "PREEMPTED"
    assert folder.metrics_file.read_bytes() == row


def test_a_run_that_was_replaced_while_its_folder_was_out_of_reach_leaves_no_weights(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the other attempt, whose hash the record has, may lie there already."""
    wanted = brief(corpus)
    folder = run_folder(tmp_path, wanted)

    def out_of_reach(path: Path, content: bytes) -> None:
        Attempt.begin(folder)
        monkeypatch.setattr("study.training.run.write_atomically", write_atomically)
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("study.training.run.write_atomically", out_of_reach)
    assert train(wanted, folder, "test", Execution(), StopSignal()) == "PREEMPTED"
    assert not folder.weights_file.exists()
    assert folder.record() is None


def test_a_run_whose_folder_is_moved_makes_none_anew_and_goes_on_where_it_is_brought_back(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where that is soon, else at the next attempt."""
    wanted, step_of_training = brief(corpus), MaskedLanguageModelling.training_step
    undisturbed, folder = trained(tmp_path / "undisturbed", wanted), run_folder(tmp_path, wanted)
    elsewhere = tmp_path / "elsewhere"

    def moves(self: MaskedLanguageModelling, *arguments: Any) -> torch.Tensor:
        if self.trainer.global_step == 9:
            folder.path.rename(elsewhere)
        return step_of_training(self, *arguments)

    def bring_back() -> None:
        elsewhere.rename(folder.path)

    def attempt(meanwhile: Callable[[], object] = lambda: None) -> str:
        monkeypatch.setattr(durable_files, "time", ImpatientClock(meanwhile))
        return train(wanted, folder, "test", Execution(checkpoint_seconds=0.0), StopSignal())

    with monkeypatch.context() as patch:
        patch.setattr(MaskedLanguageModelling, "training_step", moves)
        with pytest.raises(FileNotFoundError):
            attempt()
        assert not folder.path.exists()
        bring_back()
        assert [row["trainer/step"] for row in folder.metrics()][-1] == 9
        assert attempt(bring_back) == "COMPLETED"
    assert rows(folder) == rows(undisturbed)


def test_a_damaged_row_is_named_and_the_run_has_its_record(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot go on over rows that it cannot read; tried again without the line it ends as if nothing had been."""
    wanted = brief(corpus)
    with monkeypatch.context() as patch:
        stopped = trained(tmp_path, wanted, stop_after(9, patch))
    lines = stopped.metrics_file.read_bytes().splitlines(keepends=True)
    stopped.metrics_file.write_bytes(b"".join([*lines[:3], bytes(20) + b"\n", *lines[4:]]))
    record = trained(tmp_path, wanted).record()
    assert record is not None
    assert record.state == "FAILED"
    assert record.reason is not None
    assert f"{stopped.metrics_file}:4: is not a row of metrics" in record.reason
    stopped.put_record_aside({"reason": "mended"})
    stopped.metrics_file.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    mended, straight = trained(tmp_path, wanted).record(), trained(tmp_path / "straight", wanted).record()
    assert mended is not None
    assert straight is not None
    assert (mended.state, mended.loss_nats) == ("COMPLETED", straight.loss_nats)


def test_one_validation_sequence_has_a_loss_without_a_standard_error(corpus: Path, tmp_path: Path) -> None:
    record = trained(tmp_path, brief(corpus, data={"validation_sequences": 1})).record()
    assert record is not None
    assert record.state == "COMPLETED"
    assert record.loss_nats is not None
    assert record.loss_standard_error_nats is None


def test_a_run_that_diverges_after_its_last_row_is_diverged(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MaskedLanguageModelling.on_validation_start

    def ruined(self: MaskedLanguageModelling) -> None:
        original(self)
        with torch.no_grad():
            self.model.head.bias.fill_(float("nan"))

    monkeypatch.setattr(MaskedLanguageModelling, "on_validation_start", ruined)
    record = trained(tmp_path, brief(corpus), validations=1).record()
    assert record is not None
    assert record.state == "DIVERGED"
    assert "validation loss is nan after step 12" in (record.reason or "")


def test_a_signal_during_the_last_validation_does_not_lose_the_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MaskedLanguageModelling.validation_step

    def interrupted(self: MaskedLanguageModelling, batch: Any, batch_idx: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        original(self, batch, batch_idx)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(MaskedLanguageModelling, "validation_step", interrupted)
    try:
        record = trained(tmp_path, brief(corpus), validations=1).record()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert record is not None
    assert record.state == "COMPLETED"


@pytest.mark.parametrize("rate", [1e12])
def test_a_run_whose_loss_is_not_finite_is_diverged(rate: float, corpus: Path, tmp_path: Path) -> None:
    changes = {"learning_rate": rate, "gradient_clip_norm": 1e30, "warmup_fraction": 0.0}
    folder = trained(tmp_path, config(corpus, architecture={"norm": "pre"}, recipe=changes))
    record = folder.record()
    assert record is not None
    assert record.state == "DIVERGED"
    assert re.fullmatch(rf"the training loss is (nan|inf) in the 1 step to step {record.steps + 1}", record.reason or "")
    assert record.loss_nats is None
    assert record.steps < 30


def test_a_run_that_is_told_to_stop_where_a_weight_is_infinite_is_diverged_and_saves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow_at(6, monkeypatch)
    monkeypatch.setattr(
        DurableCheckpointIO, "save_checkpoint", lambda *_, **__: pytest.fail("saved a state that is not finite")
    )
    record = trained(tmp_path, config(corpus), stop_after(6, monkeypatch)).record()
    assert record is not None
    assert (record.state, record.reason) == ("DIVERGED", "a weight is not finite after step 6")


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (MemoryError("cannot allocate"), "OOM", "cannot allocate"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "OOM", "9 bytes"),
        (torch.OutOfMemoryError("CUDA out of memory"), "OOM", "CUDA out of memory"),
        (torch.AcceleratorError("CUDA error: out of memory"), "OOM", "out of memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "OOM", "ALLOC_FAILED"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "OOM", "out of memory"),
        (InductorError(torch.OutOfMemoryError("Tried to allocate 20 GiB"), None), "OOM", "20 GiB"),
        (OSError(28, "No space left on device"), "FAILED", "No space left on device"),
    ],
)
def test_what_goes_wrong_is_in_the_record(
    error: Exception, state: str, reason: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Checkpointer, "on_train_batch_end", fail)
    record = trained(tmp_path, brief(corpus)).record()
    assert record is not None
    assert record.state == state
    assert reason in (record.reason or "")


def test_an_error_that_was_raised_for_want_of_memory_is_of_memory() -> None:
    error = ValueError("no kernel was built")
    assert failure_of(error) == Outcome("FAILED", "ValueError: no kernel was built")
    error.__context__ = torch.OutOfMemoryError("Tried to allocate 20 GiB")
    assert failure_of(error) == Outcome("OOM", "Tried to allocate 20 GiB")


def test_a_device_that_fails_leaves_no_record_so_that_the_run_is_tried_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    with monkeypatch.context() as broken:
        broken.setattr(Checkpointer, "on_train_batch_end", fail)
        with pytest.raises(torch.AcceleratorError):
            trained(tmp_path, brief(corpus))
    record = trained(tmp_path, brief(corpus)).record()
    assert record is not None
    assert (record.state, record.attempts) == ("COMPLETED", 2)


@pytest.mark.parametrize(("state", "kept"), [
    ("COMPLETED", False), ("PRUNED", False), ("DIVERGED", True), ("OOM", True), ("FAILED", True), ("HUNG", True),
])  # fmt: skip
def test_what_nobody_goes_on_with_keeps_no_checkpoint(state: State, kept: bool, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    (folder.checkpoints / "step-0000000001-0.ckpt").touch()
    tidy(folder, state)
    assert bool(checkpoints_in(folder.checkpoints)) is kept


@pytest.mark.parametrize("progress", [Watchdog.on_train_batch_end, Watchdog.on_validation_batch_end])
def test_a_run_hangs_where_neither_steps_nor_validation_get_on_for_long_and_time_stopped_does_not_count(
    progress: Callable[[Watchdog], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own, in tenths of the limit: batches end for two of it, the process is stopped, then all is silent."""
    clock, hung = [0.0], list[tuple[float, str]]()
    watchdog = Watchdog(10.0, lambda reason: hung.append((clock[0], reason)))
    monkeypatch.setattr("study.training.callbacks.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("study.training.callbacks.faulthandler", SimpleNamespace(
        dump_traceback_later=lambda *_, **__: None, cancel_dump_traceback_later=lambda: None, dump_traceback=lambda _: None
    ))  # fmt: skip

    def wait(seconds: float) -> bool:
        clock[0] += 1000.0 if clock[0] == 20.0 else seconds
        if clock[0] <= 20.0:
            progress(watchdog)
        return False

    watchdog._watch(SimpleNamespace(wait=wait), threading.get_ident())  # type: ignore[arg-type]
    ((when, reason),) = hung
    assert 1025 <= when <= 1035
    assert reason.startswith("no step for 10 s, in ")


def test_what_a_watchdog_sets_off_is_called_off_when_its_watch_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what it was about to set off: the end of a process that is stuck, which would come later."""
    said, begun = list[str](), threading.Event()

    def set_off(*_: Any, **__: Any) -> None:
        begun.set()
        time.sleep(0.2)
        said.append("set off")

    monkeypatch.setattr("study.training.callbacks.faulthandler", SimpleNamespace(
        dump_traceback_later=set_off, cancel_dump_traceback_later=lambda: said.append("called off")
    ))  # fmt: skip
    with Watchdog(0.5, pytest.fail).watching():
        begun.wait()
    until(lambda: all(thread.name != "watchdog" for thread in threading.enumerate()))
    assert said == ["set off", "called off"]


class Clockwork:
    """A trainer whose checkpoints take some seconds, on a clock of its own."""

    def __init__(self, seconds_of_save: float) -> None:
        self.now, self.seconds_of_save, self.saved_at = 0.0, seconds_of_save, list[float]()
        self.strategy = SimpleNamespace(checkpoint_io=DurableCheckpointIO())
        self.world_size, self.loggers = 1, ()
        self.global_step, self.max_steps, self.val_check_batch = 0, 10**9, 10**9

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        self.saved_at.append(self.now)
        self.now += self.seconds_of_save

    def train(self, checkpointer: Checkpointer, seconds: int) -> list[float]:
        module = SimpleNamespace(log_due_row=lambda: None, parameters=tuple)
        while self.now < seconds:
            self.now, self.global_step = self.now + 1, self.global_step + 1
            checkpointer.on_train_batch_end(self, module)  # type: ignore[arg-type]
        return self.saved_at


@pytest.mark.parametrize(
    ("asked", "seconds_of_save", "saves"),
    [
        (None, 0.01, [11, 32, 73, 134, 195]),  # 10, 20, 40, then 60 seconds apart
        (None, 4.0, [11, 216]),  # a fiftieth of the time
        (30.0, 4.0, [31, 66, 101, 136, 171, 206, 241]),
        (float("inf"), 0.01, []),
    ],
)
def test_checkpoints_come_as_asked_or_as_their_cost_allows(
    asked: float | None, seconds_of_save: float, saves: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Clockwork(seconds_of_save)
    monkeypatch.setattr("study.training.callbacks.time.monotonic", lambda: trainer.now)
    actual = trainer.train(Checkpointer(tmp_path, StopSignal(), asked), 250)
    assert actual == pytest.approx(saves, abs=1.5)


@pytest.mark.parametrize(
    ("recipe", "apart"),
    [
        pytest.param({"objective": "mlm_nsp"}, 1e-4, marks=pytest.mark.slow),
        pytest.param({"objective": "rtd"}, 1e-3, marks=pytest.mark.slow),
        ({"optimizer": "muon", "learning_rate": 1e-3}, 5e-3),  # at 1e-2 gradients spike, and rounding to bf16 grows
    ],
    ids=["AdamW, over pairs", "AdamW, of replaced tokens", "Muon, in bf16"],
)
def test_two_ranks_and_one_give_the_same_losses_though_they_stopped_between_two_rows(
    recipe: dict[str, Any], apart: float, corpus: Path, tmp_path: Path
) -> None:
    wanted = config(corpus, architecture=SHARED, recipe={"budget": {"steps": 100}} | recipe)
    alone = trained(tmp_path / "alone", wanted)
    folder = run_folder(tmp_path / "together", wanted)
    folder.write_config(wanted)
    assert ranks_said(folder, stop_at=25) == ["PREEMPTED", "PREEMPTED"]
    assert ranks_said(folder) == ["COMPLETED", "COMPLETED"]
    mine, theirs = rows(folder), rows(alone)
    assert [row["trainer/step"] for row in mine] == [row["trainer/step"] for row in theirs]
    for one, other in zip(mine, theirs, strict=True):
        for key in set(one) & {"train/loss", "val/loss", "val/order_gain", "val/pair_loss", "train/gradient_norm"}:
            assert one[key] == pytest.approx(other[key], abs=apart), (key, one["trainer/step"])
    record = folder.record()
    assert record is not None
    assert record.environment is not None
    assert record.environment.devices == 2
    assert json.loads(folder.record_file.read_text())["state"] == "COMPLETED"


def test_the_first_step_of_an_attempt_has_no_speed(corpus: Path, tmp_path: Path) -> None:
    first, *others = trained(tmp_path / "run", brief(corpus)).metrics()
    assert not {*first} & {*TIMINGS}
    assert all({*TIMINGS} <= {*row} for row in others if "train/loss" in row)


def test_two_ranks_and_one_give_padded_sequences_the_same_weights(corpus: Path, tmp_path: Path) -> None:
    """Two thirds of the documents have three words, so that ranks have unequal numbers of masked positions."""
    texts = corpus.read_text().split("\n\n")
    short = tmp_path / "short.txt"
    short.write_text("\n\n".join(" ".join(text.split()[: 3 if n % 3 else 40]) for n, text in enumerate(texts)))
    recipe = {"packing": "doc_sentences", "batch_tokens": 64}
    wanted = brief(short, recipe=recipe, data={"validation_sequences": 8})
    alone, folder = trained(tmp_path / "alone", wanted), run_folder(tmp_path / "together", wanted)
    folder.write_config(wanted)
    assert ranks_said(folder) == ["COMPLETED", "COMPLETED"]
    for one, other in zip(rows(folder), rows(alone), strict=True):
        for key in set(one) & {"train/loss", "val/loss", "train/gradient_norm"}:
            assert one[key] == pytest.approx(other[key], abs=1e-4), (key, one["trainer/step"])


def sleep_in_first_step(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    original = MaskedLanguageModelling.training_step

    def slow_at_first(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(seconds * (self.trainer.global_step == 0))
        return original(self, batch, batch_idx)

    monkeypatch.setattr(MaskedLanguageModelling, "training_step", slow_at_first)


@pytest.mark.slow
def test_a_slow_first_step_is_the_start_of_a_run_and_slows_no_row(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where kernels are built in it: rows are of two steps, of which the first row's leave the first one out."""
    sleep_in_first_step(3.0, monkeypatch)
    folder = trained(tmp_path, config(corpus, recipe={"budget": {"steps": 100}}))
    record = folder.record()
    assert record is not None
    assert record.start_seconds is not None
    assert record.start_seconds > 3
    assert record.wall_seconds is not None
    assert record.tokens_per_second == pytest.approx(99 * 128 / (record.wall_seconds - record.start_seconds))
    first = next(row for row in folder.metrics() if "perf/tokens_per_second" in row)
    assert first["trainer/step"] == 2
    speed = first["perf/tokens_per_second"]
    assert speed > 2 * 128 / 3
    assert speed == float(f"{speed:.3e}"), "further digits are noise"


def test_the_start_of_an_attempt_that_stops_after_its_first_step_is_kept(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as first:
        stop = stop_after(1, first)
        sleep_in_first_step(1.0, first)
        folder = trained(tmp_path, brief(corpus), stop)
    assert [step_of(checkpoint) for checkpoint in checkpoints_in(folder.checkpoints)] == [1]
    record = trained(tmp_path, brief(corpus)).record()
    assert record is not None
    assert record.start_seconds is not None
    assert record.start_seconds > 1
    assert record.starts == 2


def test_devices_without_a_part_of_the_batch_or_of_validation_are_refused(corpus: Path) -> None:
    with pytest.raises(InputError, match=r"recipe\.batch_tokens: 8 sequences a batch cannot be divided evenly among 3 devices"):
        Execution(device="cpu", devices=3).check(config(corpus))
    with pytest.raises(InputError, match=r"data\.validation_sequences: 3 are fewer than the 4 devices of a run"):
        Execution(device="cpu", devices=4).check(config(corpus, data={"validation_sequences": 3}))
    padded = config(corpus, recipe={"packing": "doc_sentences", "objective": "rtd"})
    Execution(device="cpu").check(padded)
    with pytest.raises(InputError, match=r"recipe\.packing: doc_sentences leaves devices unequal numbers of tokens"):
        Execution(device="cpu", devices=2).check(padded)


def test_only_what_a_run_wrote_is_removed_when_it_ends(corpus: Path, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, brief(corpus))
    folder.checkpoints.mkdir(parents=True)
    mine = tmp_path / "mine.ckpt"
    mine.write_text("mine")
    kept = ["best.ckpt", "notes.txt", "step-0000000001-mine.ckpt", "step-12.ckpt", "step-final-best.ckpt"]
    for name in ("best.ckpt", "notes.txt", "step-12.ckpt", "step-final-best.ckpt"):
        (folder.checkpoints / name).write_text("mine")
    (folder.checkpoints / "step-0000000001-mine.ckpt").symlink_to(mine)
    assert trained(tmp_path, brief(corpus)).path == folder.path
    assert sorted(file.name for file in folder.checkpoints.iterdir()) == kept
    assert mine.read_text() == "mine"


def test_a_link_in_the_place_of_the_checkpoints_is_refused(corpus: Path, tmp_path: Path) -> None:
    folder, elsewhere = run_folder(tmp_path, config(corpus)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    theirs = [elsewhere / "step-0000000003-theirs.ckpt", elsewhere / ".step-theirs.tmp", elsewhere / "best.ckpt"]
    for file in theirs:
        file.write_text("theirs")
    folder.path.mkdir(parents=True)
    folder.checkpoints.symlink_to(elsewhere)
    record = trained(tmp_path, config(corpus)).record()
    assert record is not None
    assert record.state == "FAILED"
    assert record.reason is not None
    assert "checkpoints: is a link; remove the link" in record.reason
    assert sorted(elsewhere.iterdir()) == sorted(theirs)
