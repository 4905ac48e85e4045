"""The usual peer: transformers' BertForMaskedLM, in a plain loop and under transformers' Trainer as run_mlm uses it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from study.benching.cases import Case
from study.benching.contenders import gate_of
from study.benching.gate import Gate
from study.benching.synthetic import SEQUENCES, drawn_data, drawn_tokenizer
from study.counting.parameters import MASKING_RATE
from study.model.autocast import autocast
from study.model.optimization import adamw

LOOP_BATCHES = 8
"""Batches that the plain loop goes round; they are masked beforehand, which costs it nothing."""


def model_of(case: Case) -> Any:
    """BertForMaskedLM of the case's sizes, with its default attention (SDPA)."""
    a = case.architecture
    config = BertConfig(
        vocab_size=a.vocabulary,
        hidden_size=a.width,
        num_hidden_layers=a.depth,
        num_attention_heads=a.heads,
        intermediate_size=a.ffn,
        max_position_embeddings=a.positions,
        hidden_dropout_prob=case.dropout,
        attention_probs_dropout_prob=case.dropout,
    )
    return BertForMaskedLM(config)


def sequences_of(case: Case, folder: Path) -> Any:
    """The packed sequences that our side trains on, with the columns that run_mlm gives its model."""
    folder.mkdir()
    split = drawn_data(folder, case.architecture.vocabulary, case.sequence_length).split("train")
    tokens = split.take(np.arange(min(SEQUENCES["train"], len(split))))
    zeros, ones = np.zeros_like(tokens), np.ones_like(tokens)
    columns = {"input_ids": tokens, "token_type_ids": zeros, "attention_mask": ones, "special_tokens_mask": zeros}
    return Dataset.from_dict({name: list(values) for name, values in columns.items()})


def collator_of(case: Case) -> Any:
    """The collator of run_mlm: pads, masks 15% of the tokens and labels all others -100."""
    backend = drawn_tokenizer(case.architecture.vocabulary)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    return DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=MASKING_RATE)


def loop(case: Case, folder: Path, channel: Connection) -> None:
    """A plain loop: masked batches at hand, autocast, fused AdamW with our recipe's constants, the gradient's norm clipped."""
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    dataset, collate = sequences_of(case, folder / "loop"), collator_of(case)
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


class _GateCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Passes the gate after every optimiser step."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """One step is done."""
        self.gate.step()


def trainer(case: Case, folder: Path, channel: Connection, compiled: bool = False) -> None:
    """The Trainer of transformers with the collator of run_mlm and its dense head; `compiled` adds its torch_compile."""
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    name = "trainer_compiled" if compiled else "trainer"
    dataset, collate = sequences_of(case, folder / name), collator_of(case)
    arguments = TrainingArguments(
        output_dir=str(folder / name),
        per_device_train_batch_size=case.batch,
        max_steps=case.config().steps,
        bf16=case.dtype == "bf16",
        use_cpu=case.device == "cpu",
        torch_compile=compiled,
        optim="adamw_torch_fused",
        max_grad_norm=case.config().recipe.gradient_clip_norm or 0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(
        model=model_of(case), args=arguments, train_dataset=dataset, data_collator=collate, callbacks=[_GateCallback(gate)]
    ).train()


def trainer_compiled(case: Case, folder: Path, channel: Connection) -> None:
    """The Trainer with torch_compile."""
    trainer(case, folder, channel, compiled=True)
