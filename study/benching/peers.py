"""The usual peer: transformers' BertForMaskedLM in a plain loop, and under Trainer as in run_mlm."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.modeling_outputs import MaskedLMOutput

from study.benching.cases import Case
from study.benching.contenders import SEQUENCES, drawn_data, gate_of
from study.benching.own_processes import Gate
from study.counting.architecture import Architecture
from study.counting.memory import Device, Precision
from study.counting.parameters import MASKING_RATE
from study.data.masking import IGNORED
from study.data.tokenizing import SPECIAL_PIECES, bert_tokenizer
from study.model.layers import autocast
from study.model.optimization import adamw

LOOP_BATCHES = 8
"""Pre-masked batches that the plain loop repeats."""


def bert_config(architecture: Architecture, dropout: float = 0.1, positions: int = 512) -> Any:
    """Return a BertConfig with an architecture's sizes."""
    return BertConfig(
        vocab_size=architecture.vocabulary,
        hidden_size=architecture.width,
        num_hidden_layers=architecture.depth,
        num_attention_heads=architecture.heads,
        intermediate_size=architecture.ffn,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


class BertWithSparseHead(BertForMaskedLM):  # type: ignore[misc, unused-ignore]
    """BertForMaskedLM whose head skips unlabelled positions: the same loss and gradients in less time."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, **_: Any) -> Any:
        """Return the mean loss over the labelled positions, in nats."""
        hidden_BxSxH = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        labelled_BxS = labels != IGNORED
        return MaskedLMOutput(loss=F.cross_entropy(self.cls(hidden_BxSxH[labelled_BxS]), labels[labelled_BxS]))


def model_of(case: Case, kind: type[BertForMaskedLM] = BertForMaskedLM) -> Any:
    """Return the case's BertForMaskedLM, or another `kind` of it, with its default attention (SDPA)."""
    return kind(bert_config(case.architecture, case.dropout, case.architecture.positions))


def dataset_of(tokens: NDArray[np.int64], special: Sequence[int] = ()) -> Any:
    """Return packed sequences as a Dataset with run_mlm's columns."""
    zeros, ones = np.zeros_like(tokens), np.ones_like(tokens)
    columns = {"input_ids": tokens, "token_type_ids": zeros, "attention_mask": ones}
    columns["special_tokens_mask"] = np.isin(tokens, special).astype(tokens.dtype)
    return Dataset.from_dict({name: list(values) for name, values in columns.items()})


def collator_of(tokenizer: Tokenizer) -> Any:
    """Return run_mlm's collator, which masks 15% of the tokens and labels all others -100."""
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    return DataCollatorForLanguageModeling(tokenizer=fast, mlm_probability=MASKING_RATE)


def arguments_of(device: Device, dtype: Precision, folder: Path | str, batch: int, steps: int, **more: Any) -> Any:
    """Return Trainer's arguments for steps on a device that are neither saved nor logged elsewhere."""
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        max_steps=steps,
        bf16=dtype == "bf16",
        use_cpu=device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def _drawn(case: Case, folder: Path) -> tuple[Any, Any]:
    folder.mkdir()
    vocabulary = case.architecture.vocabulary
    split = drawn_data(folder, vocabulary, case.sequence_length).split("train")
    return dataset_of(split.take(np.arange(min(SEQUENCES["train"], len(split))))), collator_of(_drawn_tokenizer(vocabulary))


def _drawn_tokenizer(vocabulary: int) -> Tokenizer:
    words = (f"w{number}" for number in range(vocabulary - len(SPECIAL_PIECES)))
    return bert_tokenizer({piece: number for number, piece in enumerate([*SPECIAL_PIECES, *words])})


def loop(case: Case, folder: Path, channel: Connection) -> None:
    """Train in a plain loop: pre-masked batches, autocast, fused AdamW with our recipe's constants, clipping."""
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    dataset, collate = _drawn(case, folder / "loop")
    model = model_of(case).to(case.device).train()
    recipe = case.config().recipe
    optimizer = adamw(model, recipe)
    firsts = range(0, LOOP_BATCHES * case.batch, case.batch)
    rows = [[dataset[(first + row) % len(dataset)] for row in range(case.batch)] for first in firsts]
    batches = [{name: collate(part)[name] for name in ("input_ids", "labels")} for part in rows]
    step = 0
    while True:
        batch = {name: values.to(case.device, non_blocking=True) for name, values in batches[step % LOOP_BATCHES].items()}
        with autocast(case.device, case.dtype):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        gate.step()


class TrainerGateCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Calls the gate after every optimiser step."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count the step."""
        self.gate.step()


def trainer(case: Case, folder: Path, channel: Connection, compiled: bool = False) -> None:
    """Train with transformers' Trainer, run_mlm's collator and dense head; `compiled` adds torch_compile."""
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    name = "trainer_compiled" if compiled else "trainer"
    dataset, collate = _drawn(case, folder / name)
    recipe = case.config().recipe
    more = {"torch_compile": compiled, "optim": "adamw_torch_fused", "max_grad_norm": recipe.gradient_clip_norm or 0.0}
    arguments = arguments_of(case.device, case.dtype, folder / name, case.batch, case.config().steps, **more)
    Trainer(
        model=model_of(case),
        args=arguments,
        train_dataset=dataset,
        data_collator=collate,
        callbacks=[TrainerGateCallback(gate)],
    ).train()


def trainer_compiled(case: Case, folder: Path, channel: Connection) -> None:
    """Train with torch_compile."""
    trainer(case, folder, channel, compiled=True)
