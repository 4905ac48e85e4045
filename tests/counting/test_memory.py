"""Predicted memory is what a live run takes, at its peak."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.counting.layer_losses import NO_LOSSES, LayerLosses
from study.counting.memory import Precision, TrainingStep, activation_bytes, inference_memory, memory_of, training_memory
from study.counting.parameters import parameters
from study.model.encoder import Encoder
from study.planning.memory_check import run_memory
from tests.live_memory import cuda_peak, tracked_peak, train_three_steps
from tests.needs import needs_gpu
from tests.transformers_models import DEBERTA, DEBERTA_V3, MOBILEBERT, MODERN, NEOBERT, WINDOWS

TOLERANCE, GPU_TOLERANCE = 0.03, 0.10
"""How far a prediction may be off; a GPU's allocator rounds, and its kernels have workspaces of their own."""


RECIPE = ("precision", "dropout", "masking", "optimizer", "objective", "packing", "generator_share")
"""The knobs of a case that are no property of its architecture."""


def config(
    depth: int, width: int, heads: int, ffn: int, *, vocabulary: int, length: int, batch: int, **changes: Any
) -> RunConfig:
    recipe = {name: changes.pop(name) for name in RECIPE if name in changes}
    sizes = {"depth": depth, "width": width, "heads": heads, "ffn": ffn, "vocabulary": vocabulary, "positions": length}
    return RunConfig.parse(
        {
            "architecture": sizes | changes,
            "recipe": {"precision": "fp32", "batch_tokens": batch * length, "budget": {"steps": 3}} | recipe,
            "data": {
                "tokenizer": {"vocabulary": vocabulary},
                "sequence_length": length,
                "validation_sequences": 2 * batch,
            },
        }
    )


NARROW = MOBILEBERT | {"embedding_width": 32, "bottleneck_width": 32}

SWISH = {"activation": "swiglu", "norm_kind": "rms", "biases": "none"}

DECODED: dict[str, Any] = {"enhanced_mask_decoder": True, "position_encoding": "rotary"}

LOG_BUCKETS = DEBERTA_V3 | {"relative_positions": 256, "relative_reach": 256}

ORDERED: dict[str, Any] = {"distance_bias": "learned", "position_encoding": "rotary", "query_key_norm": True}
ORDERED |= {"norm": "pre", "norm_kind": "rms"}

TRAINED = {
    "bert-tiny, gradient of the token table": config(2, 128, 2, 512, vocabulary=30522, length=64, batch=8),
    "loss": config(2, 128, 2, 512, vocabulary=2048, length=64, batch=32),
    "bf16": config(2, 128, 2, 512, vocabulary=2048, length=64, batch=8, precision="bf16"),
    "dropout, backward pass of the last layer": config(2, 64, 8, 256, vocabulary=300, length=256, batch=8, dropout=0.1),
    "dropout, backward pass of the layer before": config(3, 64, 8, 64, vocabulary=300, length=256, batch=8, dropout=0.1),
    "bf16, dropout, untied": config(
        2, 128, 2, 512, vocabulary=8000, length=64, batch=8, precision="bf16", dropout=0.1, tied_decoder=False
    ),
    "bf16, many heads, so products of attention": config(2, 128, 8, 256, vocabulary=300, length=256, batch=8, precision="bf16"),
    "few tokens, deep": config(4, 256, 4, 1024, vocabulary=2048, length=32, batch=2),
    "pre-norm": config(6, 64, 1, 128, vocabulary=1000, length=64, batch=16, norm="pre"),
    "rotary": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, position_encoding="rotary"),
    "rotary, with more positions than tokens": config(
        3, 128, 1, 256, vocabulary=100, length=64, batch=2, positions=4096, position_encoding="rotary"
    ),
    "bf16, rotary": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, precision="bf16", position_encoding="rotary"),
    "bf16, one head": config(5, 64, 1, 64, vocabulary=300, length=64, batch=32, precision="bf16"),
    "dropout, one head, rotary": config(
        5, 64, 1, 64, vocabulary=300, length=64, batch=32, dropout=0.1, position_encoding="rotary"
    ),
    "learned bias, loss": config(2, 128, 2, 512, vocabulary=2048, length=64, batch=32, distance_bias="learned"),
    "learned bias, backward pass of the layer before": config(
        3, 64, 8, 64, vocabulary=300, length=256, batch=8, distance_bias="learned", position_encoding="none"
    ),
    "learned bias, one long sequence": config(2, 64, 4, 128, vocabulary=300, length=512, batch=1, distance_bias="learned"),
    "learned bias, validation in bf16": config(
        1, 64, 16, 256, vocabulary=300, length=128, batch=16, precision="bf16", norm="pre", distance_bias="learned"
    ),
    "ALiBi": config(2, 128, 8, 256, vocabulary=300, length=256, batch=8, distance_bias="alibi"),
    "ALiBi, one long sequence": config(4, 64, 8, 64, vocabulary=300, length=512, batch=1, distance_bias="alibi"),
    "ALiBi, bf16": config(2, 128, 8, 256, vocabulary=300, length=256, batch=8, precision="bf16", distance_bias="alibi"),
    "normed queries and keys": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, query_key_norm=True),
    "normed queries and keys, one layer": config(1, 256, 4, 1024, vocabulary=512, length=128, batch=32, query_key_norm=True),
    "normed queries and keys, bf16": config(
        3, 128, 4, 256, vocabulary=1000, length=64, batch=16, precision="bf16", query_key_norm=True
    ),
    "normed queries and keys, one head, dropout": config(
        5, 64, 1, 64, vocabulary=300, length=64, batch=32, dropout=0.1, query_key_norm=True
    ),
    "all that finds order": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, **ORDERED),
    "all that finds order, bf16": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, precision="bf16", **ORDERED),
    "factorised embeddings": config(2, 128, 2, 512, vocabulary=8000, length=64, batch=8, embedding_width=32),
    "factorised embeddings, bf16, dropout": config(
        2, 128, 2, 512, vocabulary=2048, length=64, batch=16, embedding_width=32, precision="bf16", dropout=0.1
    ),
    "shared layers, bf16, few tokens": config(
        6, 256, 4, 1024, vocabulary=2048, length=32, batch=2, layer_groups=1, precision="bf16"
    ),
    "forward pass of the last layer, bf16": config(1, 256, 4, 1024, vocabulary=512, length=128, batch=32, precision="bf16"),
    "many pieces, bf16": config(2, 128, 2, 512, vocabulary=30522, length=64, batch=8, precision="bf16"),
    "one layer, pre-norm, bf16": config(1, 256, 4, 1024, vocabulary=512, length=128, batch=32, norm="pre", precision="bf16"),
    "GeGLU": config(4, 128, 2, 512, vocabulary=2048, length=64, batch=16, activation="geglu"),
    "one layer, GeGLU": config(1, 256, 4, 1024, vocabulary=512, length=128, batch=32, activation="geglu"),
    "one layer, ReLU": config(1, 256, 4, 1024, vocabulary=512, length=128, batch=32, activation="relu"),
    "SwiGLU, RMSNorm, no biases, bf16": config(
        4,
        128,
        2,
        512,
        vocabulary=2048,
        length=64,
        batch=16,
        activation="swiglu",
        norm_kind="rms",
        biases="none",
        precision="bf16",
    ),
    "ModernBERT": config(4, 128, 2, 512, vocabulary=2048, length=64, batch=16, dropout=0.1, **MODERN),
    "windows": config(4, 64, 2, 128, vocabulary=300, length=256, batch=2, **MODERN | WINDOWS),
    "windows, bf16": config(4, 64, 2, 128, vocabulary=300, length=256, batch=4, precision="bf16", **MODERN | WINDOWS),
    "NeoBERT": config(4, 128, 2, 344, vocabulary=2048, length=64, batch=16, **NEOBERT),
    "MobileBERT": config(3, 128, 4, 128, vocabulary=1000, length=64, batch=16, **NARROW),
    "MobileBERT, bf16": config(3, 128, 4, 128, vocabulary=1000, length=64, batch=16, precision="bf16", **NARROW),
    "MobileBERT, dropout": config(4, 128, 4, 128, vocabulary=300, length=64, batch=16, dropout=0.1, **NARROW),
    "MobileBERT, many pieces": config(2, 128, 4, 128, vocabulary=8000, length=64, batch=8, **NARROW),
    "Muon, MobileBERT": config(4, 128, 4, 128, vocabulary=300, length=16, batch=2, optimizer="muon", **NARROW),
    "a bottleneck between layer norms": config(3, 128, 4, 256, vocabulary=300, length=64, batch=16, bottleneck_width=64),
    "stacked FFNs, pre-norm": config(3, 64, 4, 128, vocabulary=300, length=64, batch=16, ffn_stack=3, norm="pre"),
    "DeBERTa": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, **DEBERTA | {"relative_positions": 128}),
    "DeBERTa, bf16": config(
        3, 128, 4, 256, vocabulary=1000, length=64, batch=16, precision="bf16", **DEBERTA | {"relative_positions": 1024}
    ),
    "DeBERTa with its mask decoder": config(
        3,
        128,
        4,
        256,
        vocabulary=1000,
        length=64,
        batch=16,
        **DEBERTA | {"relative_positions": 128, "enhanced_mask_decoder": True},
    ),
    "mask decoder, rotary, pre-norm, bf16": config(
        2, 128, 4, 256, vocabulary=300, length=64, batch=16, precision="bf16", **DECODED | {"norm": "pre"}
    ),
    "mask decoder, rotary, bf16, half of all masked": config(
        2, 128, 4, 256, vocabulary=300, length=64, batch=16, precision="bf16", masking={"rate": 0.5}, **DECODED
    ),
    "mask decoder, one layer": config(1, 128, 4, 256, vocabulary=300, length=64, batch=16, **DECODED),
    "DeBERTa v3, products with relative positions": config(3, 128, 4, 256, vocabulary=1000, length=64, batch=16, **LOG_BUCKETS),
    "DeBERTa v3, validation of long sequences": config(2, 64, 4, 64, vocabulary=300, length=256, batch=2, **LOG_BUCKETS),
    "DeBERTa v2 with a convolution": config(
        4, 128, 2, 256, vocabulary=300, length=64, batch=16, convolution_kernel=3, **DEBERTA_V3
    ),
    "many masks in training": config(
        1, 32, 1, 128, vocabulary=2000, length=128, batch=16, activation="relu", masking={"rate": 0.4}
    ),
    "validation, with few masks in training": config(
        1, 32, 2, 32, vocabulary=8000, length=16, batch=64, masking={"rate": 0.07}
    ),
    "Muon, few tokens": config(4, 256, 4, 1024, vocabulary=2048, length=32, batch=2, optimizer="muon"),
    "Muon, where its matrices are not the peak": config(
        2, 128, 2, 512, vocabulary=2048, length=64, batch=32, precision="bf16", optimizer="muon"
    ),
    "Muon, GeGLU, shared layers": config(
        4, 128, 2, 344, vocabulary=300, length=16, batch=2, activation="geglu", layer_groups=2, optimizer="muon"
    ),
    "Muon, matrices of one shape": config(3, 128, 4, 128, vocabulary=300, length=16, batch=2, optimizer="muon"),
    "Muon, FFN hardly wider": config(3, 128, 4, 160, vocabulary=300, length=16, batch=2, optimizer="muon"),
    "pairs": config(2, 128, 2, 512, vocabulary=300, length=32, batch=32, objective="mlm_nsp"),
    "pairs, loss": config(2, 128, 2, 512, vocabulary=2048, length=64, batch=32, objective="mlm_sop"),
    "pairs, one layer, bf16": config(
        1, 256, 4, 1024, vocabulary=512, length=16, batch=128, precision="bf16", objective="mlm_nsp"
    ),
    "replaced tokens": config(2, 128, 2, 512, vocabulary=300, length=64, batch=16, objective="rtd"),
    "replaced tokens, gradient of the token table": config(
        2, 128, 2, 512, vocabulary=30522, length=64, batch=8, objective="rtd", generator_share=0.5
    ),
    "replaced tokens, bf16, factorised embeddings": config(
        3, 128, 2, 512, vocabulary=2048, length=64, batch=16, embedding_width=32, precision="bf16", objective="rtd"
    ),
    "replaced tokens, dropout, padded": config(
        3, 64, 4, 128, vocabulary=300, length=128, batch=8, dropout=0.1, packing="doc_sentences", objective="rtd"
    ),
    "replaced tokens, large generator": config(
        1, 64, 1, 64, vocabulary=8000, length=64, batch=16, objective="rtd", generator_share=1
    ),
    "replaced tokens, Muon": config(3, 128, 4, 128, vocabulary=300, length=16, batch=2, optimizer="muon", objective="rtd"),
    "padded documents": config(3, 64, 8, 64, vocabulary=300, length=128, batch=8, packing="doc_sentences"),
    "one layer": config(1, 256, 4, 1024, vocabulary=512, length=128, batch=32),
    "gradient of the loss, where it is the peak on a GPU": config(1, 32, 1, 128, vocabulary=2000, length=128, batch=16),
    "validation": config(1, 32, 2, 32, vocabulary=8000, length=16, batch=64),
    "validation, its forward pass": config(2, 64, 1, 1024, vocabulary=300, length=128, batch=16),
    "validation, its forward pass in bf16": config(2, 64, 1, 1024, vocabulary=300, length=128, batch=16, precision="bf16"),
    "one layer, validation with rotary positions": config(
        1, 64, 2, 256, vocabulary=64, length=256, batch=16, norm="pre", position_encoding="rotary", embedding_width=32
    ),
    "validation in bf16, pre-norm, many heads": config(
        1, 64, 16, 256, vocabulary=300, length=128, batch=16, precision="bf16", norm="pre"
    ),
    "validation in bf16, rotary": config(
        1, 64, 8, 256, vocabulary=300, length=128, batch=16, precision="bf16", position_encoding="rotary"
    ),
}

ENCODED = {
    "GeGLU": (config(2, 128, 2, 512, vocabulary=1000, length=64, batch=16, activation="geglu"), "fp32"),
    "shared layers, RMSNorm, bf16": (
        config(4, 128, 2, 512, vocabulary=1000, length=64, batch=16, layer_groups=1, norm_kind="rms"),
        "bf16",
    ),
    "factorised embeddings": (config(2, 128, 2, 512, vocabulary=8000, length=64, batch=4, embedding_width=32), "fp32"),
    "feed-forward": (config(2, 128, 2, 512, vocabulary=1000, length=64, batch=8), "fp32"),
    "bf16": (config(2, 128, 2, 512, vocabulary=1000, length=64, batch=8), "bf16"),
    "pre-norm": (config(3, 96, 3, 384, vocabulary=300, length=64, batch=16, norm="pre"), "fp32"),
    "attention": (config(4, 128, 2, 128, vocabulary=1000, length=64, batch=32), "fp32"),
    "rotary": (config(4, 128, 2, 128, vocabulary=1000, length=64, batch=32, position_encoding="rotary"), "fp32"),
    "learned bias, normed queries and keys": (
        config(4, 128, 2, 128, vocabulary=1000, length=64, batch=32, distance_bias="learned", query_key_norm=True),
        "fp32",
    ),
    "ALiBi": (config(4, 128, 8, 128, vocabulary=1000, length=128, batch=4, distance_bias="alibi"), "fp32"),
    "MobileBERT": (config(3, 128, 4, 128, vocabulary=300, length=64, batch=16, **NARROW), "fp32"),
    "stacked FFNs": (config(3, 64, 4, 128, vocabulary=300, length=64, batch=16, ffn_stack=3, norm="pre"), "fp32"),
    "DeBERTa v3": (config(3, 64, 4, 64, vocabulary=300, length=64, batch=16, **LOG_BUCKETS), "fp32"),
    "weights": (config(2, 128, 2, 512, vocabulary=30522, length=64, batch=1), "fp32"),
    "wide": (config(1, 512, 8, 2048, vocabulary=300, length=128, batch=16), "bf16"),
}


FAST = {
    "dropout, backward pass of the last layer",
    "few tokens, deep",
    "pre-norm",
    "factorised embeddings",
    "windows",
    "Muon, GeGLU, shared layers",
    "DeBERTa with its mask decoder",
    "replaced tokens",
    "padded documents",
    "validation",
    "MSE, projected",
}
"""One run for each part of the formula; the others, of further precisions and sizes, take longer."""


def some_slow(names: Iterable[str]) -> list[Any]:
    """The names as parameters of a test, those that are not fast marked slow."""
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", some_slow(TRAINED))
def test_a_run_takes_the_memory_that_is_predicted(name: str) -> None:
    run = TRAINED[name]
    predicted = run_memory(run, "bf16" if run.recipe.precision == "bf16" else "fp32", "cpu")
    measured = tracked_peak(lambda: train_three_steps(run))
    assert predicted.total == pytest.approx(measured, rel=TOLERANCE), predicted


@pytest.mark.parametrize(
    ("name", "bf16"),
    [pytest.param(name, bf16, marks=pytest.mark.slow) for name in TRAINED if name.startswith("Muon") for bf16 in (True, False)],
)
def test_matrices_take_the_memory_of_the_precision_that_the_processor_orthogonalises_them_in(
    name: str, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    test_a_run_takes_the_memory_that_is_predicted(name)


TAUGHT = {
    "loss": (TRAINED["loss"], 1.0, {"depth": 4, "width": 256, "heads": 4, "ffn": 1024}),
    "loss, beside the text": (TRAINED["loss"], 0.5, {"depth": 4, "width": 256, "heads": 4, "ffn": 1024}),
    "bf16": (TRAINED["bf16"], 1.0, {"depth": 1, "width": 256, "heads": 4, "ffn": 1024}),
    "few tokens, deep": (TRAINED["few tokens, deep"], 1.0, {"depth": 8, "width": 256, "heads": 4, "ffn": 1024}),
    "lesson": (TRAINED["pre-norm"], 1.0, {"depth": 2, "width": 512, "heads": 8, "ffn": 4096}),
    "lesson in bf16": (
        config(1, 32, 1, 64, vocabulary=300, length=256, batch=2, precision="bf16"),
        1.0,
        {"depth": 1, "width": 64, "heads": 16, "ffn": 256},
    ),
}
"""Students, the weights of their lessons, and the sizes of their teachers."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "lesson" else pytest.mark.slow) for name in TAUGHT])
def test_a_run_with_a_teacher_takes_the_memory_that_is_predicted(name: str) -> None:
    run, weight, sizes = TAUGHT[name]
    a = run.architecture
    teacher = Architecture.parse(sizes | {"vocabulary": a.vocabulary, "positions": a.positions})
    precision: Any = "bf16" if run.recipe.precision == "bf16" else "fp32"
    step = TrainingStep(run.batch_sequences, run.data.sequence_length, run.predictions, precision, teacher=teacher)
    predicted = training_memory(a, step)
    measured = tracked_peak(lambda: train_three_steps(run, teacher=teacher, weight=weight))
    assert predicted.total == pytest.approx(measured, rel=TOLERANCE), predicted
    assert (predicted.moment == "forward pass of the teacher") == name.startswith("lesson")


BETWEEN, LONG = "losses between layers", {"vocabulary": 300, "length": 128, "batch": 8}
MATCHED: dict[str, tuple[str, RunConfig, dict[str, Any], LayerLosses]] = {
    "cosine": ("loss", TRAINED["loss"], {"width": 128, "heads": 2}, LayerLosses(hidden_cosine=1.0)),
    "MSE, projected": (
        "loss",
        config(3, 64, 2, 128, vocabulary=300, length=64, batch=16, norm="pre"),
        {"width": 256, "heads": 4},
        LayerLosses(hidden_mse=1.0, layers="uniform"),
    ),
    "MSE, projected, bf16": (
        "loss",
        config(2, 64, 2, 128, vocabulary=300, length=64, batch=16, precision="bf16"),
        {"width": 256, "heads": 4},
        LayerLosses(hidden_mse=1.0, layers="uniform"),
    ),
    "TinyBERT": (
        BETWEEN,
        config(2, 128, 8, 256, **LONG),
        {"width": 256, "heads": 8},
        LayerLosses(hidden_mse=1.0, attention=1.0, layers="uniform"),
    ),
    "attention, bf16": (
        f"gradient of the {BETWEEN}",
        config(2, 128, 8, 256, **LONG, precision="bf16"),
        {"width": 128, "heads": 8},
        LayerLosses(attention=1.0, layers="uniform"),
    ),
    "MiniLM": (BETWEEN, config(2, 128, 8, 256, **LONG), {"width": 128, "heads": 8}, LayerLosses(relations=1.0)),
    "MiniLMv2, bf16": (
        BETWEEN,
        config(2, 128, 8, 256, **LONG, precision="bf16"),
        {"width": 256, "heads": 4},
        LayerLosses(relations=1.0, relation_heads=16),
    ),
}
"""The moment of the peak, students, the sizes of their teachers of four layers, and losses between layers."""


@pytest.mark.parametrize("name", some_slow(MATCHED))
def test_losses_between_layers_take_the_memory_that_is_predicted(name: str) -> None:
    moment, run, sizes, losses = MATCHED[name]
    a = run.architecture
    teacher = Architecture.parse({"depth": 4, "ffn": 512, "vocabulary": a.vocabulary, "positions": a.positions} | sizes)
    precision: Any = "bf16" if run.recipe.precision == "bf16" else "fp32"
    step = TrainingStep(
        run.batch_sequences, run.data.sequence_length, run.predictions, precision, teacher=teacher, losses=losses
    )
    predicted = training_memory(a, step)
    measured = tracked_peak(lambda: train_three_steps(run, teacher=teacher, losses=losses))
    assert predicted.total == pytest.approx(measured, rel=TOLERANCE), predicted
    assert predicted.moment == moment
    assert predicted.total > 1.05 * training_memory(a, replace(step, losses=NO_LOSSES)).total


def test_every_moment_is_the_peak_of_some_run_here() -> None:
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    moments = {run_memory(run, precision, "cpu").moment for run in TRAINED.values() for precision in precisions}
    assert len(moments) == 8
    moments |= {run_memory(run, precision, "cuda").moment for run in TRAINED.values() for precision in precisions}
    assert len(moments) == 10


@pytest.mark.parametrize("name", [name for name, run in TRAINED.items() if run.architecture.depth > 1])
def test_a_graphed_step_keeps_its_memory_while_the_run_validates(name: str) -> None:
    run = TRAINED[name]
    eager, graphed = (run_memory(run, "fp32", "cuda", graphed=graphed) for graphed in (False, True))
    logits = 4 * 4 * run.batch_sequences * run.predictions * run.architecture.vocabulary
    forward = inference_memory(run.architecture, 2 * run.batch_sequences, run.data.sequence_length).activations
    assert graphed.moment == "validation"
    assert graphed.total >= eager.total
    assert graphed.total == (eager.total + max(logits, forward) if eager.moment != "validation" else graphed.total)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name == "wide" else ()) for name in ENCODED])
def test_inference_takes_the_memory_that_is_predicted(name: str) -> None:
    run, precision = ENCODED[name]
    predicted = inference_memory(run.architecture, run.batch_sequences, run.data.sequence_length, precision)  # type: ignore[arg-type]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    encoder = Encoder(run.architecture).eval().to(dtype)
    tokens = torch.zeros(run.batch_sequences, run.data.sequence_length, dtype=torch.long)
    stored = sum(parameter.untyped_storage().nbytes() for parameter in encoder.parameters())
    with torch.inference_mode():
        measured = stored + tokens.untyped_storage().nbytes() + tracked_peak(lambda: encoder(tokens))
    assert predicted.total == pytest.approx(measured, rel=TOLERANCE), predicted


@pytest.mark.slow
def test_the_tracker_agrees_with_the_allocator(tmp_path: Path) -> None:
    run = TRAINED["few tokens, deep"]
    tracked = tracked_peak(lambda: train_three_steps(run))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train_three_steps(run)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    changes = [event["args"] for event in events if event.get("name") == "[memory]"]
    before = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    allocated = max(change["Total Allocated"] for change in changes) - before
    assert tracked == pytest.approx(allocated, rel=0.02)


@needs_gpu
@pytest.mark.parametrize("batch", [32, 128])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_run_on_a_gpu_takes_the_memory_that_is_predicted(batch: int, precision: Any, dropout: float) -> None:
    run = config(4, 512, 8, 2048, vocabulary=30522, length=128, batch=batch, precision=precision, dropout=dropout)
    measured = cuda_peak(lambda: train_three_steps(run, "cuda"))
    assert run_memory(run, precision, "cuda").total == pytest.approx(measured, rel=GPU_TOLERANCE)


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inference_on_a_gpu_takes_the_memory_that_is_predicted(precision: Any) -> None:
    run = config(4, 512, 8, 2048, vocabulary=30522, length=128, batch=64)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    encoder = Encoder(run.architecture).eval().to("cuda", dtype)
    tokens = torch.zeros(64, 128, dtype=torch.long, device="cuda")
    stored = sum(parameter.untyped_storage().nbytes() for parameter in encoder.parameters())
    with torch.inference_mode():
        measured = stored + tokens.untyped_storage().nbytes() + cuda_peak(lambda: encoder(tokens))
    assert inference_memory(run.architecture, 64, 128, precision).total == pytest.approx(measured, rel=GPU_TOLERANCE)


def bert_base() -> Architecture:
    return Architecture.parse({"depth": 12, "width": 768, "heads": 12, "ffn": 3072, "vocabulary": 30522})


def test_the_parts_add_up_and_workspace_is_never_negative() -> None:
    for batch in (1, 8, 512):
        for precision in ("fp32", "bf16"):
            memory = training_memory(bert_base(), TrainingStep(batch, 128, 19, precision))
            assert memory.workspace >= 0
            assert memory.total == sum(memory.parts.values())
            assert memory.weights + memory.gradients + memory.optimiser == 16 * parameters(bert_base()).parameters


def test_heads_keep_their_log_sum_exps_and_masked_positions_their_head_and_labels() -> None:
    """Parts too small for a live run to tell: 4AN in each layer, in the last 4AM; in that and the head all that M brings."""
    depth, width, batch, length, predictions = 3, 64, 8, 32, 5
    sizes = {"depth": depth, "width": width, "ffn": 256, "vocabulary": 300}
    two, eight = (Architecture.parse(sizes | {"heads": heads}) for heads in (2, 8))
    step = TrainingStep(batch, length, predictions)
    of_heads = activation_bytes(eight, step) - activation_bytes(two, step)
    assert of_heads == 4 * (8 - 2) * batch * ((depth - 1) * length + predictions)
    masked = batch * predictions
    of_masked = activation_bytes(two, step) - activation_bytes(two, replace(step, predictions=0))
    of_head, of_norms, of_products = 4 * 4 * width + 8, 2 * (4 * width + 8), 4 * (4 * width + 2 * 256) + 4 * 2
    assert of_masked == masked * (of_head + of_norms + of_products + 16)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_accounts_are_of_berts_masking_without_dropout(precision: Any) -> None:
    memory = memory_of(bert_base(), 32, 128, precision)
    assert memory["training"] == training_memory(bert_base(), TrainingStep(32, 128, 19, precision, dropout=0.0, device="cpu"))
    assert memory["inference"] == inference_memory(bert_base(), 32, 128, precision)


def test_ddp_holds_the_gradients_once_more() -> None:
    one, two = (training_memory(bert_base(), TrainingStep(8, 128, 19, ranks=ranks)) for ranks in (1, 2))
    assert two.gradients == 2 * one.gradients


def test_the_parts_add_up_for_programs() -> None:
    values = memory_of(bert_base(), 32, 128, "bf16")["training"].to_dict()
    sizes = {name: size for name, size in values.items() if isinstance(size, int)}
    assert sizes.pop("total_bytes") == sum(sizes.values())


@pytest.mark.parametrize(("batch", "length", "place"), [(0, 128, "--batch"), (1, 513, "--sequence-length")])
def test_impossible_batches_are_refused(batch: int, length: int, place: str) -> None:
    with pytest.raises(InputError) as refused:
        memory_of(bert_base(), batch, length, "fp32")
    assert refused.value.problems[0].place == place
