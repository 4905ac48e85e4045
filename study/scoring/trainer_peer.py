"""The other side of the fine-tuning benchmark: transformers' Trainer on BertForSequenceClassification."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch

from study.architecture import Architecture
from study.memory import Device, Precision
from study.score_config import Knobs
from study.scoring.ragged import Ragged

WARM_UP = 5
"""Steps of each round that are not timed."""

STEPS: dict[Device, int] = {"cpu": 25, "cuda": 100}
"""Steps of each round that are."""


def trainer_tokens_per_second(architecture: Architecture, tokens: Ragged, device: Device, precision: Precision) -> float:
    """The speed of transformers' Trainer on BertForSequenceClassification, its batches padded to their longest example."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = _bert(architecture)
    counted = {"tokens": 0, "seconds": 0.0}

    class Timer(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == WARM_UP:
                synchronise(device)
                counted["seconds"], counted["tokens"] = -perf_counter(), -int(model.tokens_seen)
            elif state.global_step == state.max_steps:
                synchronise(device)
                counted["seconds"] += perf_counter()
                counted["tokens"] += int(model.tokens_seen)

    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        arguments = transformers.TrainingArguments(
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
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=list(_examples(tokens)),
            data_collator=_padded,
            callbacks=[Timer()],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return counted["tokens"] / counted["seconds"]


def _bert(a: Architecture) -> Any:
    import transformers

    class Counting(transformers.BertForSequenceClassification):  # type: ignore[misc]
        tokens_seen: Any = 0

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
            self.tokens_seen = self.tokens_seen + attention_mask.sum()
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    return Counting(
        transformers.BertConfig(
            vocab_size=a.vocabulary,
            hidden_size=a.width,
            num_hidden_layers=a.depth,
            num_attention_heads=a.heads,
            intermediate_size=a.ffn,
        )
    )


def _examples(tokens: Ragged) -> Iterator[dict[str, Any]]:
    for number in range(len(tokens)):
        yield {"input_ids": torch.from_numpy(tokens[number]), "labels": number % 2}


def _padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What DataCollatorWithPadding makes, by torch's own padding."""
    rows = [example["input_ids"] for example in examples]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    attended = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": attended, "labels": torch.tensor([example["labels"] for example in examples])}


def synchronise(device: Device) -> None:
    """Wait for the device to be done."""
    if device == "cuda":
        torch.cuda.synchronize()
