"""Knob values in plain words, for sentences and figures: `batch_tokens=256` is a batch of 256 tokens.

Tables keep `key=value`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from study.base.grouping import grouped
from study.base.schema import whole
from study.base.text import joined
from study.config.named_runs import NO_RUN, Teacher, parse_start, parse_teacher
from study.config.run_config import describe_knobs
from study.evidence.cells import run_ids_in, shorten_run_ids

_OTHER = ""
"""The key of the phrase for numbers without one of their own."""

_PHRASES: dict[str, dict[str, str]] = {
    "architecture.activation": {
        "gelu": "GELU",
        "gelu_tanh": "GELU by tanh",
        "relu": "ReLU",
        "geglu": "GeGLU",
        "swiglu": "SwiGLU",
    },
    "architecture.distance_bias": {"none": "no distance bias", "learned": "a learned distance bias", "alibi": "ALiBi"},
    "architecture.embedding_norm": {"none": "no norm of the embeddings", "True": "a norm of the embeddings"},
    "architecture.embedding_width": {"none": "a token table of full width", _OTHER: "a token table of width {:,}"},
    "architecture.enhanced_mask_decoder": {"False": "a plain last layer", "True": "the enhanced mask decoder"},
    "architecture.layer_groups": {
        "none": "unshared layers",
        "1": "shared layers",
        _OTHER: "layers shared in {:,} groups",
    },
    "architecture.mlm_transform": {
        "embedding_width": "an MLM transform",
        "width": "an MLM transform to full width",
        "none": "no MLM transform",
    },
    "architecture.norm": {"post": "post-norm", "pre": "pre-norm"},
    "architecture.position_encoding": {
        "learned": "learned positions",
        "rotary": "rotary positions",
        "none": "no positions",
        "disentangled": "disentangled attention",
        "disentangled_shared": "disentangled attention of shared projections",
    },
    "architecture.tied_decoder": {"False": "an untied decoder", "True": "a tied decoder"},
    "data.tokenizer.kind": {"wordpiece": "WordPiece", "bpe": "BPE", "byte_bpe": "byte-level BPE", "unigram": "Unigram"},
    "data.tokenizer.vocabulary": {_OTHER: "{:,} pieces"},
    "recipe.batch_tokens": {_OTHER: "a batch of {:,} tokens"},
    "recipe.initialisation": {"bert": "BERT's initialisation", "unit_stream": "a projection that starts at unit scale"},
    "recipe.masking.rate": {_OTHER: "{:.3g}% masks"},
    "recipe.masking.static_copies": {
        "0": "new masks at every visit",
        "1": "masks written once",
        _OTHER: "masks written {:,} times",
    },
    "recipe.objective": {
        "mlm": "masked-word prediction",
        "mlm_nsp": "masked-word and next-sentence prediction",
        "mlm_sop": "masked-word and sentence-order prediction",
        "rtd": "replaced-token detection",
    },
    "recipe.optimizer": {"adamw": "AdamW", "muon": "Muon"},
    "recipe.packing": {
        "full_sentences": "packing across documents",
        "doc_sentences": "packing within documents",
        "segment_pairs": "packing in pairs of segments",
    },
    "recipe.parametrization": {
        "standard": "the standard parametrization",
        "completep": "CompleteP",
        "scaled_rates": "learning rates scaled by width",
    },
    "recipe.start": {NO_RUN["start"]: "a fresh start"},
    "recipe.teacher": {NO_RUN["teacher"]: "no teacher"},
    "recipe.unique_tokens": {_OTHER: "{:,} unique tokens"},
}
"""The phrase of each value of a knob, such that `the loss with` may precede it; `_spelled` writes all others."""

_PERCENT = {"recipe.masking.rate"}
"""The knobs whose numbers are shares, written in percent."""

_ASKED_BY = {"recipe.initialisation": r"begin|initial"}
"""What a question says of a knob, where that is not the knob's name."""

_LAYER_LOSSES = {
    "hidden_cosine": "hidden states by cosine",
    "hidden_mse": "hidden states",
    "attention": "attention",
    "relations": "relations",
}
"""What a teacher's layers teach, by the name of the loss."""


def plain_words(settings: Iterable[Mapping[str, object]]) -> Callable[[str], str]:
    """Return what writes every `key=value` of a text in plain words, those of cells' settings, by ledger column, as phrases."""
    phrases = dict(_phrases(settings))
    known = "|".join(map(re.escape, sorted(phrases, key=len, reverse=True)))
    phrase = re.compile(rf"(?<![\w.:])(?:{known})(?![\w=]|[:.,]\w)") if known else None

    def in_plain_words(text: str) -> str:
        if phrase is not None:
            text = phrase.sub(lambda match: phrases[match[0]], text)
        return re.sub(r"([\w.]+)=([^\s,;()]*)", lambda match: _spelled(match[1], match[2]), text)

    return in_plain_words


def is_asked_of(knob: str, question: str) -> bool:
    """Whether a question names a knob."""
    return re.search(_ASKED_BY.get(knob, _name(knob)), question.lower()) is not None


def _phrases(settings: Iterable[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Each setting as `describe_knobs` writes it, also with short run ids, and its phrase; those of one phrase keep values."""
    values = dict.fromkeys((knob, value) for cell in settings for knob, value in cell.items())
    ids = run_ids_in(value for _, value in values)
    for (knob, phrase), same in grouped(values, lambda setting: (setting[0], _phrase(*setting))).items():
        for _, value in same:
            written = describe_knobs({knob: value})
            for text in {written, shorten_run_ids(written, ids)}:
                yield text, phrase if len(same) == 1 else _spelled(*text.split("=", 1))
            if (teacher := parse_teacher(str(value))) is not None and teacher.unusual:
                yield f"distilled ({describe_knobs(teacher.unusual)})", f"distilled from {_of_teacher(teacher)}"


def _phrase(knob: str, value: object) -> str:
    phrases, text = _PHRASES.get(knob, {}), describe_knobs({knob: value}).partition("=")[2]
    if knob == "recipe.start" and (start := parse_start(text)) is not None:
        words = {"spread": "evenly spread layers"}.get(start.keep, f"the {start.kept_words}")
        return f"a start from {words}" if start.grow is None else "a start from a grown encoder"
    if knob == "recipe.teacher" and (teacher := parse_teacher(text)) is not None:
        return _of_teacher(teacher)
    if text in phrases:
        return phrases[text]
    try:
        number = whole(float(text) * (100 if knob in _PERCENT else 1))
        return phrases[_OTHER].format(number)
    except (KeyError, ValueError):
        return _spelled(knob, text)


def _of_teacher(teacher: Teacher) -> str:
    """Return what a teacher teaches; below weight 1 the masked words themselves teach, too."""
    layers = [words for name, words in _LAYER_LOSSES.items() if getattr(teacher.losses, name)]
    taught = joined([*(["predictions"] if teacher.weight else []), *layers])
    return f"a teacher's {taught}{' beside masked words' if teacher.weight < 1 else '' if layers else ' alone'}"


def _spelled(knob: str, value: str) -> str:
    """Return a knob's name and a value as words, for values without a phrase: depth scale 2, no pooler."""
    if value in ("True", "False"):
        return f"{'' if value == 'True' else 'no '}{_name(knob)}"
    return f"{_name(knob)} {re.sub('[:=_]+', ' ', value)}"


def _name(knob: str) -> str:
    return knob.rpartition(".")[2].replace("_", " ")
