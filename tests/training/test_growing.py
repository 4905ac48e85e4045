"""A grown encoder computes what the small one does, at its first step and with every choice of architecture, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from study.base.errors import InputError
from study.config.named_runs import Grow
from study.config.presets import PRESETS
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.model.masked_language_model import MaskedLanguageModel
from study.model.stored_weights import trained_weights
from study.store.run_folder import RunFolder
from study.training.reshaping import grown, ungrowable
from study.training.trained_runs import check_trained_runs
from tests.small import ORDERED, SHARED, config, stop_after, trained, write_corpus
from tests.transformers_models import DEBERTA, DEBERTA_V3, MOBILEBERT, MODERN, NEOBERT, WINDOWS

SIZES: dict[str, Any] = {"depth": 2, "width": 16, "heads": 2, "ffn": 32, "vocabulary": 50, "positions": 8}
WIDER: dict[str, Any] = {"width": 32, "heads": 4, "ffn": 72}
PRE: dict[str, Any] = {"norm": "pre"}

GROWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "BERT, wider": ({}, WIDER),
    "BERT, three times as wide": ({}, {"width": 48, "heads": 6, "ffn": 96}),
    "BERT, ffn": ({}, {"ffn": 45}),
    "untied decoder": ({"tied_decoder": False}, WIDER),
    "narrow tables": ({"embedding_width": 8}, WIDER),
    "shared layers": (SHARED, WIDER),
    "no key bias, ffn": (DEBERTA, {"ffn": 45}),
    "DeBERTa v3, ffn": (DEBERTA_V3, {"ffn": 45}),
    "order from a bias, normed queries": (ORDERED, WIDER),
    "pre-norm, wider": (PRE, WIDER),
    "pre-norm, deeper": (PRE, {"depth": 5}),
    "pre-norm, both": (PRE, WIDER | {"depth": 3}),
    "modern": ({**PRESETS["modern"]["architecture"]}, WIDER | {"depth": 5}),
    "BERT, deeper": ({}, {"depth": 5}),
    "RMS norms, deeper": ({"norm_kind": "rms"}, {"depth": 3}),
    "ModernBERT's": (MODERN, WIDER | {"depth": 4}),
    "ModernBERT's windows": (MODERN | WINDOWS, WIDER | {"depth": 4}),
    "affine norms": ({"norm_kind": "affine", "norm_epsilon": 1e-5}, WIDER | {"depth": 3}),
    "a mask decoder": ({"enhanced_mask_decoder": True, "position_encoding": "rotary"}, WIDER),
    "NeoBERT's": (NEOBERT, WIDER | {"depth": 4}),
}


def architecture(**changes: Any) -> Architecture:
    return Architecture.parse(SIZES | changes)


def scattered(model: MaskedLanguageModel) -> MaskedLanguageModel:
    """The model with every parameter away from its initial value, biases and norms too."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def grow_into(given: Architecture, wanted: Architecture, grow: Grow) -> tuple[MaskedLanguageModel, MaskedLanguageModel]:
    small = scattered(MaskedLanguageModel(given, seed=1))
    large = MaskedLanguageModel(wanted, seed=2).eval()
    large.load_state_dict(grown(small.state_dict(), given, wanted, grow, seed=3))
    return small, large


@pytest.mark.parametrize("grow", ["even", "uneven"])
@pytest.mark.parametrize("name", GROWN)
def test_a_grown_encoder_predicts_what_the_small_one_does(name: str, grow: Grow) -> None:
    kind, changes = GROWN[name]
    given, wanted = architecture(**kind), architecture(**(kind | changes))
    assert ungrowable(given, wanted) is None
    small, large = grow_into(given, wanted, grow)
    tokens = torch.randint(0, 50, (3, 8), generator=torch.Generator().manual_seed(0))
    attended = torch.arange(8).expand(3, 8) < torch.tensor([[8], [5], [3]])
    for inputs in ((tokens,), (tokens, None, None, attended)):
        torch.testing.assert_close(large(*inputs), small(*inputs), rtol=1e-5, atol=1e-5)
    assert small(tokens).std() > 0.1


@pytest.mark.parametrize("kind", [PRE, {}], ids=["pre", "post"])
def test_new_layers_learn_from_the_first_step(kind: dict[str, Any]) -> None:
    _, large = grow_into(architecture(**kind), architecture(**kind, depth=4), "even")
    loss = torch.nn.functional.cross_entropy(large(torch.arange(8)[None]).flatten(0, 1), torch.arange(8))
    loss.backward()  # type: ignore[no-untyped-call]
    for block in large.encoder.blocks[2:]:
        assert block.feed_forward.outer.weight.grad.abs().max() > 1e-4  # type: ignore[union-attr,operator]


def test_copies_get_equal_gradients_unless_their_shares_are_uneven() -> None:
    given, wanted = architecture(**PRE), architecture(**PRE, **WIDER)
    for grow in ("even", "uneven"):
        _, large = grow_into(given, wanted, grow)
        large(torch.arange(8)[None]).square().sum().backward()
        gradient = large.encoder.blocks[0].feed_forward.inner.weight.grad  # type: ignore[union-attr]
        assert isinstance(gradient, torch.Tensor)
        apart = (gradient[:32] - gradient[32:64]).abs().max() / gradient.abs().max()
        assert (apart > 0.05) == (grow == "uneven")


def test_shares_are_drawn_from_the_seed_and_add_up() -> None:
    given, wanted = architecture(), architecture(**WIDER)
    weights = MaskedLanguageModel(given, seed=1).state_dict()
    one, same, other = (grown(weights, given, wanted, "uneven", seed) for seed in (1, 1, 2))
    name = "encoder.blocks.0.attention.output.weight"
    assert torch.equal(one[name], same[name])
    assert not torch.equal(one[name], other[name])
    torch.testing.assert_close(one[name][:16, :16] + one[name][:16, 16:], weights[name])
    even = grown(weights, given, wanted, "even")[name]
    assert torch.equal(even[:16, :16], even[:16, 16:])


@pytest.mark.parametrize(
    ("given", "wanted", "problem"),
    [
        ({}, {}, "has these sizes already; leave out grow"),
        ({}, {"width": 24, "heads": 3}, "cannot grow into L2-H24-A3-F32; give a multiple of the width"),
        ({}, {"ffn": 16}, "and no less of the others"),
        ({}, {"width": 32}, "has heads of width 8, not 16; a wider encoder has more heads, no wider ones"),
        ({"norm_epsilon": 1e-5}, {"depth": 3}, "has norm_epsilon 1e-05, so that every further norm"),
        (PRE | {"layer_groups": 1}, {"depth": 3}, "has layer_groups 1; layers that share their weights cannot begin as"),
        ({}, {"norm": "pre"}, "has norm post, not pre; growth changes depth, width, heads and ffn alone"),
        (DEBERTA, WIDER, "has position_encoding disentangled, whose scores would change with its width"),
        ({"distance_bias": "alibi"}, WIDER, "has distance_bias alibi"),
        (NEOBERT | {"tied_decoder": True}, WIDER, "has no MLM transform, so that its tied decoder would read every copy"),
        (
            MOBILEBERT | {"bottleneck_width": 8},
            {"depth": 3},
            "has bottleneck_width 8; growth copies blocks of attention and one FFN",
        ),
        ({"ffn_stack": 2}, {"ffn": 45}, "has ffn_stack 2; growth copies"),
        (DEBERTA | {"enhanced_mask_decoder": True}, {"depth": 3}, "has enhanced_mask_decoder, which runs the last layer"),
        ({"trigram_embedding": True}, WIDER, "has trigram_embedding, whose product reads tables of two widths"),
        ({"embedding_width": 32}, WIDER, "has embedding_width 32, not None; growth changes depth, width, heads and ffn alone"),
    ],
)
def test_what_cannot_grow_is_said_in_a_sentence(given: dict[str, Any], wanted: dict[str, Any], problem: str) -> None:
    assert problem in str(ungrowable(architecture(**given), architecture(**(given | wanted))))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> RunFolder:
    return trained(tmp_path_factory.mktemp("source"), config(corpus, architecture=PRE))


def started(corpus: Path, start: str, **recipe: Any) -> RunConfig:
    return config(corpus, architecture=PRE | WIDER | {"depth": 3}, recipe={"start": start, **recipe})


def test_a_run_begins_where_its_small_encoder_ended_and_counts_it(corpus: Path, source: RunFolder, tmp_path: Path) -> None:
    small = source.record()
    assert small is not None
    for grow in ("even", "uneven"):
        record = trained(tmp_path, started(corpus, f"{source.path}:grow={grow}", budget={"steps": 0})).record()
        assert record is not None
        assert record.loss_nats == pytest.approx(small.loss_nats, abs=1e-5)
        assert record.spent_flops == small.train_flops
        assert record.layers_cut is None


@pytest.mark.slow
def test_a_grown_run_that_was_stopped_goes_on_to_the_same_bits(
    corpus: Path, source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = started(corpus, f"{source.path}:grow=uneven", budget={"steps": 12})
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        assert trained(tmp_path / "stopped", wanted, stop_after(7, patch)).record() is None
    resumed = trained(tmp_path / "stopped", wanted)
    record, small = straight.record(), source.record()
    assert record is not None
    assert small is not None
    assert record.spent_flops == record.train_flops + small.train_flops
    for name, tensor in trained_weights(straight).items():
        assert torch.equal(tensor, trained_weights(resumed)[name])


def test_growth_is_part_of_a_runs_name(corpus: Path, source: RunFolder) -> None:
    starts = [str(source.path), f"{source.path}:grow=even", f"{source.path}:grow=uneven"]
    assert len({started(corpus, start).fingerprint("data") for start in starts}) == 3
    assert started(corpus, starts[1]).variant(("recipe.start",)) == f"start={source.run_id}:grow=even"
    check_trained_runs([started(corpus, start) for start in starts[1:]])
    with pytest.raises(InputError, match="or grow"):
        check_trained_runs([started(corpus, starts[0])])
    with pytest.raises(InputError, match="has ':grow=wild' after its run; did you mean ':grow=even'"):
        started(corpus, f"{source.path}:grow=wild")
