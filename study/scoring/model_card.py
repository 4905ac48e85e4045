"""The model card of an exported encoder, the README.md that the Hugging Face hub shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from study.base.quantities import plus_minus
from study.base.schema import flatten
from study.base.text import escape, table
from study.store.records import RunRecord
from study.store.score_records import ScoreRecord, scores

LICENCE = "other"
"""The licence that the card names until its owner chooses one; text and tokeniser have terms of their own."""


def model_card(record: RunRecord, scored: list[ScoreRecord], class_name: str) -> str:
    """Markdown that says what the encoder is, how it was trained, on what, and how well it does.

    Paths are cut to their last part: a card is for others. Only the scores of this run at their chosen knobs are listed.
    """
    detects = record.config.recipe.detects_replaced
    task, kind = ("feature-extraction", "electra") if detects else ("fill-mask", "bert")
    what = "An encoder trained to detect replaced tokens, with its generator" if detects else "A masked language model"
    head = {"library_name": "transformers", "pipeline_tag": task, "license": LICENCE, "tags": [task, kind]}
    shape, sizes = record.config.architecture.shape_name, (record.parameters, record.parameters_non_embedding)
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
            f"# {escape(shape)}\n",
            f"{what} of {sizes[0]:,} parameters ({sizes[1]:,} without embeddings),",
            f"trained from run `{record.run_id}` of the sweep {escape(record.sweep)} with Scaling Study.\n",
            "```python\nfrom transformers import AutoTokenizer, " + class_name + "\n",
            f'model = {class_name}.from_pretrained("THIS_REPOSITORY")',
            'tokenizer = AutoTokenizer.from_pretrained("THIS_REPOSITORY")\n```\n',
            "## Results\n",
            _results(record),
            *_scores(scored),
            "\n## Training\n",
            table(("knob", "value"), _config(record).items()),
            "\n## Licence\n",
            "Not chosen yet: name one here and in `license` above; text and tokeniser have terms of their own.\n",
        ]
    )


def _results(record: RunRecord) -> str:
    """The losses of a record, and what training cost."""
    rows: list[tuple[str, object]] = []
    if record.loss_nats is not None:
        loss = plus_minus(record.loss_nats, record.loss_standard_error_nats)
        of = "token, of telling whether it was replaced" if record.config.recipe.detects_replaced else "masked token"
        rows.append((f"validation loss, nats per {of}", loss))
    if record.generator_loss_nats is not None:
        rows.append(("validation loss of the generator, nats per masked token", f"{record.generator_loss_nats:.4f}"))
    if record.order_gain_nats is not None:
        gain = plus_minus(record.order_gain_nats, record.order_gain_standard_error_nats)
        rows.append(("what the order of words is worth, nats", gain))
    if record.accuracy is not None:
        at = "ordinary" if record.config.recipe.detects_replaced else "masked"
        rows.append((f"accuracy at {at} tokens", f"{record.accuracy:.4f}"))
    rows += [("training tokens", f"{record.tokens:,}"), ("training FLOPs", f"{record.train_flops:.3g}")]
    return table(("", "value"), rows)


def _scores(scored: list[ScoreRecord]) -> list[str]:
    """The mean score of each task and protocol over seeds; nothing without scores."""
    found = scores(scored)
    if found.empty:
        return []
    groups = found.groupby(["task", "protocol", "update", "metric"], sort=True)["test"]
    rows = [(*map(str, key), f"{values.mean():.4f}", len(values)) for key, values in groups if isinstance(key, tuple)]
    return ["", table(("task", "protocol", "update", "metric", "score", "seeds"), rows)]


def _config(record: RunRecord) -> dict[str, Any]:
    """The configuration of the run by dotted key, paths cut to their last part."""
    values = {key: value for key, value in flatten(record.config.to_dict()).items() if value is not None}
    return {key: Path(value).name if isinstance(value, str) and "/" in value else value for key, value in values.items()}
