"""The other side of the fine-tuning benchmark: transformers' Trainer on BertForSequenceClassification."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from study.benching.stopwatch import STEPS, WARM_UP, Stopwatch
from study.config.score_config import Knobs
from study.counting.architecture import Architecture
from study.counting.memory import Device, Precision
from study.scoring.encoding import Ragged


def trainer_tokens_per_second(architecture: Architecture, tokens: Ragged, device: Device, precision: Precision) -> float:
    """The speed of transformers' Trainer on BertForSequenceClassification, its batches padded to their longest example."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    watch, model = Stopwatch(device), _Counting(_config(architecture))
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=WARM_UP + STEPS[device],
            per_device_train_batch_size=Knobs().batch_examples,
            learning_rate=Knobs().learning_rate,
            weight_decay=Knobs().weight_decay,
            bf16=precision == "bf16",
            use_cpu=device == "cpu",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=list(_examples(tokens)),
            data_collator=_padded,
            callbacks=[_Timer(watch, model)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.tokens_per_second


class _Counting(BertForSequenceClassification):  # type: ignore[misc, unused-ignore]
    """The usual model, which counts the tokens that it reads."""

    tokens_seen: Any = 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        self.tokens_seen = self.tokens_seen + attention_mask.sum()
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


class _Timer(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Tells a stopwatch of every step and the tokens so far."""

    def __init__(self, watch: Stopwatch, model: _Counting) -> None:
        self.watch, self.model = watch, model

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is done."""
        self.watch.step(state.global_step, self.model.tokens_seen)


def _config(a: Architecture) -> Any:
    return BertConfig(
        vocab_size=a.vocabulary,
        hidden_size=a.width,
        num_hidden_layers=a.depth,
        num_attention_heads=a.heads,
        intermediate_size=a.ffn,
    )


def _examples(tokens: Ragged) -> Iterator[dict[str, Any]]:
    for number in range(len(tokens)):
        yield {"input_ids": torch.from_numpy(tokens[number]), "labels": number % 2}


def _padded(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """What DataCollatorWithPadding makes, by torch's own padding."""
    rows = [example["input_ids"] for example in examples]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    attended = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": attended, "labels": torch.tensor([example["labels"] for example in examples])}
