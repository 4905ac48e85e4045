"""An encoder of transformers becomes a completed run that reaches what it did, and serves as any other run does."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
import yaml
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM, PreTrainedModel

from study.base.errors import InputError
from study.config.score_config import Downstream
from study.data.prepared import prepare
from study.data.tokenizing import SPECIAL_PIECES, bert_tokenizer
from study.model.in_transformers import our_architecture, our_weights
from study.model.masked_language_model import MaskedLanguageModel
from study.model.stored_weights import trained_weights
from study.model.transformers_classes import class_in
from study.scoring.evaluations import all_evaluations
from study.scoring.exporting import export
from study.scoring.pretrained import Pretrained
from study.scoring.targets import Target, evaluations_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from study.training.importing import import_encoder, to_text
from study.training.trained_runs import starting_weights
from tests.made_tasks import task, texts
from tests.small import config, run_folder, trained, write_corpus
from tests.sweeps import write_sweep
from tests.transformers_models import CLASSES


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("importing")
    write_corpus(folder / "text.txt")
    return folder


def run_of(place: Path, **architecture: Any) -> RunFolder:
    return trained(
        place / "results" / "toy", config(place / "text.txt", architecture=architecture, recipe={"budget": {"steps": 4}})
    )


def exported(place: Path, run: RunFolder, name: str = "encoder") -> Path:
    into = place / name / run.run_id
    if not into.exists():
        export(Pretrained(run), into)
    return into


def text(place: Path, **changes: Any) -> list[Any]:
    values = {"corpus": place / "text.txt", "sequence-length": 16, "validation-sequences": 32, "precision": "fp32"} | changes
    return [word for name, value in values.items() for word in (f"--{name}", value)]


FAST = ("BertForMaskedLM", "EsmForMaskedLM")


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        *(pytest.param(name, True, marks=[] if name in FAST else pytest.mark.slow) for name in CLASSES),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in CLASSES),
    ],
)
def test_what_a_run_exports_is_imported_at_its_loss(study: Any, place: Path, tmp_path: Path, name: str, tied: bool) -> None:
    run = run_of(place, **CLASSES[name], tied_decoder=tied)
    status, out, err = study("import-encoder", exported(place, run), "--into", tmp_path / "theirs", *text(place))
    assert status == 0, err
    (actual,) = SweepFolder(tmp_path / "theirs").runs()
    assert out.startswith(f"{run.config().architecture.shape_name}, ")
    assert str(actual.path) in out
    was, record = run.record(), actual.record()
    assert was is not None
    assert record is not None
    assert (record.state, record.steps, record.tokens, record.train_flops) == ("COMPLETED", 0, 0, 0.0)
    assert record.loss_nats == pytest.approx(was.loss_nats, abs=1e-5)
    assert record.order_gain_nats == pytest.approx(was.order_gain_nats, abs=1e-5)
    assert record.reads_order is False
    assert "On this text it reads no word order: its gain is " in out
    assert record.validation_masked_tokens == was.validation_masked_tokens
    assert (actual.validation_losses() - run.validation_losses()).max() < 1e-3
    if name != "EsmForMaskedLM":  # which has no segments, whose first row is in its tokens
        for weight, tensor in trained_weights(run).items():
            assert torch.equal(trained_weights(actual)[weight], tensor), weight


def saved(place: Path, into: Path, cls: type = BertForMaskedLM, **changes: Any) -> Path:
    """A model of transformers with weights as it initialises them, and the tokeniser of the toy run."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    torch.manual_seed(0)
    cls(BertConfig(**sizes | {"max_position_embeddings": 24, "initializer_range": 0.2} | changes)).save_pretrained(into)
    (into / "tokenizer.json").write_text(Pretrained(run_of(place)).tokenizer.to_str())
    return into


def imported(place: Path, source: Path, into: Path) -> RunFolder:
    data = config(place / "text.txt").data
    return import_encoder(str(source), SweepFolder(into), data, Execution(), "fp32")


def test_a_model_of_transformers_predicts_as_it_did(study: Any, place: Path, tmp_path: Path) -> None:
    run = imported(place, saved(place, tmp_path / "bert"), tmp_path / "mine, theirs" / "bert")
    record = run.record()
    assert record is not None
    assert record.environment is not None
    assert record.environment.kernels == "eager", "by which it was validated"
    printed = to_text(run, record).splitlines()
    assert any("On this text it reads no word order" in line for line in printed)
    assert "  base: {architecture: {positions: 24}}" in printed, "what is as usual a sweep file need not say"
    lines = yaml.safe_load("\n".join(printed[printed.index("A sweep that uses it as a start or a teacher needs:") + 1 :]))
    assert lines["vary"] == {"recipe.start": ["fresh", str(run.path)]}
    assert lines["data"]["tokenizer"]["path"] == str(tmp_path / "mine, theirs" / "bert" / "tokenizer.json")
    assert "30% of the text's characters are [UNK]" in to_text(run, record.model_copy(update={"lost_share": 0.3}))
    theirs = BertForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    tokens = torch.randint(0, 200, (3, 12))
    torch.testing.assert_close(Pretrained(run).masked_language_model()(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)
    (tmp_path / "texts.txt").write_text("kame gila\nnome\n")
    status, out, err = study("features", run.path, tmp_path / "texts.txt", "--layer", 1)
    assert (status, "2 embeddings of width 16" in out) == (0, True), err


def distilbert_of(folder: Path) -> Path:
    """A DistilBERT of two layers with the tokeniser of the BERT in a folder."""
    settings = DistilBertConfig(vocab_size=200, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=24)
    torch.manual_seed(1)
    DistilBertForMaskedLM(settings).save_pretrained(folder / "distilbert")
    (folder / "distilbert" / "tokenizer.json").write_bytes((folder / "bert" / "tokenizer.json").read_bytes())
    return folder / "distilbert"


def test_an_encoder_trained_elsewhere_is_used_at_all_its_positions_and_one_trained_here_at_its_own_length(
    study: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequences of an import are those of its validation, here 16 tokens of 24 positions."""
    run = imported(place, saved(place, tmp_path / "bert"), tmp_path / "into")
    (tmp_path / "texts.txt").write_text("kame gila " * 30)
    for options, length in (((), 24), (("--max-length", 12), 12)):
        err = study("features", run.path, tmp_path / "texts.txt", "--device", "cpu", *options)[2]
        assert err.endswith(f"1 text cut to {length} tokens\n")
    status, _, err = study("features", run.path, tmp_path / "texts.txt", "--device", "cpu", "--max-length", 25)
    assert (status, err) == (
        2,
        f"error: --max-length: 25 is too long: run {run.run_id} has 24 positions; give at most 24\n",
    )
    status, _, err = study("compress", run.path, "--to", "bf16", "--into", tmp_path / "smaller", "--seconds", 0.01)
    assert status == 0, err
    (smaller,) = SweepFolder(tmp_path / "smaller").runs()
    own = run_of(place, positions=24)
    requested, one = Downstream.parse({"tasks": ["made"], "seeds": 1}), task("single", ["accuracy"], texts([0, 1]), ["a", "b"])
    for folder, length, knob in ((run, 24, 24), (smaller, 24, 24), (own, 16, None)):
        pretrained = Pretrained(folder)
        export(pretrained, tmp_path / "exported" / folder.run_id)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported" / folder.run_id)
        assert (pretrained.usual_length, tokenizer.model_max_length) == (length, length)
        evaluations = all_evaluations([pretrained], "test", {"made": one}, requested)
        knobs = [job.config.knobs for evaluation in evaluations for job in evaluation.jobs({})]
        assert len(knobs) == 2 * 3, "of learned and of random weights, at three rates"
        assert {each.max_length for each in knobs} == {knob}, "so that the id of a score says how much it reads"
        asked = Downstream.parse({"tasks": ["made"], "knobs": {"max_length": 8}})
        assert {each.max_length for each in all_evaluations([pretrained], "test", {"made": one}, asked)} == {8}
    monkeypatch.setattr("study.scoring.targets.load_tasks", lambda _: {"made": one})
    taught = Downstream.parse({"tasks": ["made"], "knobs": {"teacher": str((short := run_of(place)).path)}})
    with pytest.raises(InputError, match=f"24 is too long: run {short.run_id} has 16 positions; give at most 16"):
        evaluations_of(Target(SweepFolder.of(run), (Pretrained(run),)), taught)
    shutil.rmtree(run.path)
    assert Pretrained(smaller).usual_length == 16, "nothing says any longer how it was trained"


def test_a_run_without_segments_starts_one_that_has_some_and_predicts_as_it_did(place: Path, tmp_path: Path) -> None:
    saved(place, tmp_path / "bert")
    theirs = imported(place, distilbert_of(tmp_path), tmp_path / "distilbert-run")
    own = theirs.config()
    recipe = own.recipe.model_copy(update={"start": str(theirs.path)})
    started = own.model_copy(update={"architecture": own.architecture.model_copy(update={"segments": 2}), "recipe": recipe})
    weights = starting_weights(started, prepare(own.data))
    assert weights is not None
    assert torch.equal(weights["encoder.embeddings.segment.weight"], torch.zeros(2, 16))
    model, tokens = MaskedLanguageModel(started.architecture), torch.randint(0, 200, (3, 12))
    model.load_state_dict(weights)
    torch.testing.assert_close(model.eval()(tokens), Pretrained(theirs).masked_language_model().eval()(tokens))


@pytest.mark.slow
def test_half_of_bert_beside_distilbert_is_one_sweep_file(study: Any, place: Path, tmp_path: Path) -> None:
    """DistilBERT has no segments: it starts a run that has some, and predicts as it did."""
    bert = imported(place, saved(place, tmp_path / "bert", num_hidden_layers=4), tmp_path / "results" / "bert")
    distilbert = imported(place, distilbert_of(tmp_path), tmp_path / "results" / "distilbert")
    sweep = {
        "question": "Do two of BERT's four layers serve as DistilBERT does?",
        "data": {
            "corpus": str(place / "text.txt"),
            "tokenizer": {"kind": "file", "path": str(tmp_path / "results" / "bert" / "tokenizer.json"), "vocabulary": 200},
            "sequence_length": 16,
            "validation_sequences": 32,
        },
        "base": {"architecture": {"positions": 24}, "recipe": {"precision": "fp32"}},
        "shapes": {"list": [{"depth": 2, "width": 16, "heads": 2, "ffn": 32}]},
        "budgets": {"steps": [0]},
        "vary": {"recipe.start": [f"{bert.path}:0,3", str(bert.path), str(distilbert.path)]},
    }
    file = tmp_path / "half.yaml"
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))
    status, _, err = study("launch", file, "--results", tmp_path / "results", "--no-wandb", "--device", "cpu")
    assert status == 0, err
    losses = {
        str(run.config().recipe.start): record.loss_nats
        for run in SweepFolder(tmp_path / "results" / "half").runs()
        if (record := run.record()) is not None
    }
    assert len(losses) == 3
    theirs = distilbert.record()
    assert theirs is not None
    assert losses[str(distilbert.path)] == pytest.approx(theirs.loss_nats, abs=1e-6)
    assert len(set(losses.values())) == 3


def ours_of(theirs: PreTrainedModel) -> MaskedLanguageModel:
    """The model that is built here for one of transformers, with its weights."""
    settings = theirs.config.to_dict()
    ours = MaskedLanguageModel(our_architecture(settings, "theirs")).eval()
    ours.load_state_dict(our_weights(theirs.state_dict(), ours.architecture, class_in(settings, "theirs"), "theirs"))
    return ours


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.Tensor.int, "in int32, not as floating"),
        (lambda weight: weight.to(torch.float8_e4m3fn), "in float8_e4m3fn, not as .* of 16 bits or more"),
        (lambda weight: weight / 0, "that are not finite"),
    ],
)
def test_a_tensor_that_cannot_be_a_weight_is_refused_by_its_name(
    change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    theirs = BertForMaskedLM(BertConfig(**sizes, max_position_embeddings=16))
    settings, name = theirs.config.to_dict(), "bert.encoder.layer.0.output.dense.weight"
    weights = theirs.state_dict()
    with pytest.raises(InputError, match=f"theirs: holds {name} .*{message}"):
        our_weights(
            weights | {name: change(weights[name])}, our_architecture(settings, "theirs"), class_in(settings, ""), "theirs"
        )


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RoFormerForMaskedLM", "DebertaForMaskedLM"])
@pytest.mark.parametrize("shape", [(), (5,), (15, 16), (2, 24, 16)])
def test_a_tensor_of_any_other_shape_is_refused_by_its_name(name: str, shape: tuple[int, ...]) -> None:
    cls = getattr(transformers, name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    own = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False, "type_vocab_size": 0}
    theirs = cls(cls.config_class(**sizes | (own if name.startswith("Deberta") else {}), max_position_embeddings=16))
    settings, weights = theirs.config.to_dict(), theirs.state_dict()
    for product in ("attention.self.value.weight", "attention.self.in_proj.weight", "attention.output.LayerNorm.weight"):
        for each in (each for each in weights if each.endswith(product)):
            with pytest.raises(InputError, match=f"theirs: holds {each} of .*, unlike its config.json"):
                our_weights(
                    weights | {each: torch.zeros(shape)},
                    our_architecture(settings, "theirs"),
                    class_in(settings, ""),
                    "theirs",
                )


def test_parts_that_only_together_have_the_right_size_are_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    theirs = BertForMaskedLM(BertConfig(**sizes, max_position_embeddings=16))
    settings, weights, layer = theirs.config.to_dict(), theirs.state_dict(), "bert.encoder.layer.0.attention.self"
    moved = {f"{layer}.query.weight": torch.zeros(24, 16), f"{layer}.key.weight": torch.zeros(8, 16)}
    with pytest.raises(InputError, match=f"holds {layer}.query.weight of 24 x 16, unlike its config.json"):
        our_weights(weights | moved, our_architecture(settings, "theirs"), class_in(settings, ""), "theirs")


def test_more_layers_than_the_config_describes_are_not_dropped() -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    theirs = BertForMaskedLM(BertConfig(**sizes, num_hidden_layers=3))
    settings = theirs.config.to_dict() | {"num_hidden_layers": 2}
    with pytest.raises(InputError, match=r"theirs: holds 3 layers, but its config\.json describes 2"):
        our_weights(theirs.state_dict(), our_architecture(settings, "theirs"), class_in(settings, ""), "theirs")


@pytest.mark.parametrize("name", ["Bert", "MegatronBert", "RoFormer", "Albert"])
def test_a_decoder_of_its_own_brings_its_own_bias(name: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    of_one: dict[str, dict[str, Any]] = {
        "RoFormer": {"embedding_size": 16},
        "Albert": {"embedding_size": 8, "hidden_act": "gelu"},
    }
    settings = getattr(transformers, f"{name}Config")(
        **sizes, **of_one.get(name, {}), max_position_embeddings=16, tie_word_embeddings=False
    )
    theirs = getattr(transformers, f"{name}ForMaskedLM")(settings).eval()
    head = theirs.predictions if name == "Albert" else theirs.cls.predictions
    torch.nn.init.normal_(head.bias)
    torch.nn.init.normal_(head.decoder.bias)
    ours = ours_of(theirs)
    tokens = torch.randint(0, 200, (3, 16))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("width", [8, 16])
def test_alberts_of_one_width_are_known_by_their_identity_and_other_heads_are_left_out(width: int) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    settings = transformers.AlbertConfig(**sizes, embedding_size=width, num_hidden_groups=2, hidden_act="gelu")
    theirs = transformers.AlbertForPreTraining(settings).eval()
    mapped = theirs.albert.encoder.embedding_hidden_mapping_in
    if width == 16:
        with pytest.raises(InputError, match=r"embedding_hidden_mapping_in\.weight between tables and blocks of one width"):
            ours_of(theirs)
        torch.nn.init.eye_(mapped.weight)
    tokens = torch.randint(0, 200, (3, 16))
    torch.testing.assert_close(ours_of(theirs)(tokens), theirs(tokens).prediction_logits, atol=1e-5, rtol=0)


def test_electras_of_one_width_have_its_names_and_berts_architecture() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200}
    theirs = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**sizes, embedding_size=16)).eval()
    tokens = torch.randint(0, 200, (3, 16))
    torch.testing.assert_close(ours_of(theirs)(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)


PUBLISHED: dict[str, dict[str, Any]] = {
    "google/electra-small-generator": {
        "model_type": "electra", "hidden_size": 256, "embedding_size": 128, "num_hidden_layers": 12,
        "num_attention_heads": 4, "intermediate_size": 1024, "vocab_size": 30522, "hidden_act": "gelu",
    },
    "albert/albert-base-v2": {
        "model_type": "albert", "hidden_size": 768, "embedding_size": 128, "num_hidden_layers": 12, "inner_group_num": 1,
        "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30000, "hidden_act": "gelu_new",
    },
    "answerdotai/ModernBERT-base": {
        "model_type": "modernbert", "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
        "intermediate_size": 1152, "vocab_size": 50368, "norm_eps": 1e-5, "hidden_activation": "gelu",
        "local_attention": 128, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    },
}  # fmt: skip
"""What decides of published configurations."""


def test_of_published_encoders_those_are_built_that_compute_the_same() -> None:
    electra = our_architecture(PUBLISHED["google/electra-small-generator"], "theirs")
    assert (electra.shape_name, electra.embedding_width, electra.tied_decoder) == ("L12-H256-A4-F1024", 128, True)
    albert = our_architecture(PUBLISHED["albert/albert-base-v2"], "theirs")
    assert (albert.activation, albert.mlm_activation, albert.layer_groups) == ("gelu_tanh", "gelu_tanh", 1)
    of_its_first_release: dict[str, Any] = {}
    for more in (of_its_first_release, transformers.ModernBertConfig().to_dict()):
        modern = our_architecture(PUBLISHED["answerdotai/ModernBERT-base"] | more, "theirs")
        assert (modern.attention_window, modern.global_attention_every, modern.norm_epsilon) == (128, 3, 1e-5)
        assert (modern.rotary_theta, modern.local_rotary_theta) == (160_000.0, 10_000.0)
        assert modern.local_layers == 14


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "Albert",
            {"num_hidden_layers": 5, "num_hidden_groups": 2},
            "has layer_groups 2; only a divisor",
        ),
        ("Albert", {"inner_group_num": 2}, "has inner_group_num 2; only 1"),
        ("Electra", {"hidden_act": "silu"}, "has hidden_act silu; only gelu or gelu_python or gelu_new"),
        ("ModernBert", {"mlp_bias": True}, "has mlp_bias True; only False"),
        ("ModernBert", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}}}, "'rope_type': 'linear'"),
        ("ModernBert", {"rope_scaling": {"rope_type": "linear", "factor": 2}}, "'rope_type': 'linear'"),
        ("ModernBert", {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "only full_attention in the first of"),
    ],
)
def test_what_a_class_computes_in_another_way_is_reported(name: str, changes: dict[str, Any], message: str) -> None:
    """Whether transformers has put the settings in order or not."""
    usual: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    usual |= {"vocab_size": 200, "hidden_act": "gelu", "norm_eps": 1e-12}
    usual |= {"global_attn_every_n_layers": 1, "global_rope_theta": 10_000.0}
    settings = getattr(transformers, f"{name}Config")
    our_architecture(settings(**usual).to_dict(), "theirs")
    for settled in (settings(**usual | changes).to_dict(), {"model_type": settings.model_type} | usual | changes):
        with pytest.raises(InputError) as refused:
            our_architecture(settled, "theirs")
        assert message in str(refused.value)


def test_a_vocab_txt_is_kept_as_the_tokeniser_that_it_makes(place: Path, tmp_path: Path) -> None:
    by_json, by_text = saved(place, tmp_path / "json"), saved(place, tmp_path / "text")
    pieces = Tokenizer.from_file(str(by_json / "tokenizer.json")).get_vocab()
    (by_text / "tokenizer.json").unlink()
    (by_text / "vocab.txt").write_text("\n".join(sorted(pieces, key=pieces.__getitem__)))
    runs = [imported(place, source, tmp_path / "results" / source.name) for source in (by_json, by_text)]
    first, second = (run.record() for run in runs)
    assert first is not None
    assert second is not None
    assert second.loss_nats == pytest.approx(first.loss_nats, abs=1e-6)
    assert Tokenizer.from_file(str(tmp_path / "results" / "text" / "tokenizer.json")).get_vocab() == pieces


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_padded_vocabulary_is_cut_to_the_pieces_of_its_tokeniser(study: Any, place: Path, tmp_path: Path, tied: bool) -> None:
    source = saved(place, tmp_path / "padded", vocab_size=256, tie_word_embeddings=tied)
    status, _, err = study("import-encoder", source, "--into", tmp_path / "into", *text(place))
    assert status == 0, err
    assert "The vocabulary is cut from 256 rows to the 200 pieces of the tokeniser." in err
    (run,) = SweepFolder(tmp_path / "into").runs()
    assert run.config().architecture.vocabulary == 200
    tokens = torch.randint(0, 200, (3, 12))
    theirs = BertForMaskedLM.from_pretrained(source).eval()(tokens).logits
    torch.testing.assert_close(Pretrained(run).masked_language_model()(tokens), theirs[..., :200], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_weights_in_shards_are_those_of_one_file(place: Path, tmp_path: Path) -> None:
    whole, source = saved(place, tmp_path / "whole"), saved(place, tmp_path / "shards")
    BertForMaskedLM.from_pretrained(whole).save_pretrained(source, max_shard_size="20KB")
    (source / "model.safetensors").unlink()
    assert len(list(source.glob("model-*.safetensors"))) > 1
    first, second = (imported(place, folder, tmp_path / "into") for folder in (whole, source))
    assert first.path.parent == second.path.parent
    for name, tensor in trained_weights(first).items():
        assert torch.equal(trained_weights(second)[name], tensor), name


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"w": "../model-1.safetensors"}, "index.json: has no weight_map to .safetensors files beside it"),
        ({}, "index.json: has no weight_map"),
        (["w"], "index.json: has no weight_map"),
        ({"w": "model-2.safetensors"}, "model-2.safetensors: does not exist, though model.safetensors.index.json names it"),
    ],
)
def test_an_index_of_shards_that_leads_elsewhere_is_refused(
    place: Path, tmp_path: Path, weight_map: object, message: str
) -> None:
    source = saved(place, tmp_path / "bert")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InputError, match=re.escape(message)):
        imported(place, source, tmp_path / "into")


@pytest.mark.parametrize(
    ("size", "value", "message"),
    [
        ("hidden_size", 10**9, "config.json.hidden_size: 1000000000 is above the most allowed, 1,000,000"),
        ("num_attention_heads", 10**12, "config.json.num_attention_heads: 1000000000000 is above the most allowed"),
        ("num_hidden_layers", 3000, "config.json: describes L3000-H16-A2-F32 of 6,"),
        ("vocab_size", 2**40, "config.json: describes L3-H16-A2-F32 of 18,"),
        ("max_position_embeddings", 2**20, "config.json: describes L3-H16-A2-F32 of "),
        ("max_position_embeddings", 2**62, "max_position_embeddings: 4611686018427387904 is above the most allowed, 1,048,576"),
    ],
)
def test_sizes_far_beyond_the_weights_are_refused_before_anything_is_built(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, value: int, message: str
) -> None:
    source = saved(place, tmp_path / "bert")
    values = json.loads((source / "config.json").read_bytes())
    (source / "config.json").write_text(json.dumps(values | {size: value}))
    monkeypatch.setattr("study.model.in_transformers.MaskedLanguageModel", pytest.fail)
    with pytest.raises(InputError, match=re.escape(message)):
        imported(place, source, tmp_path / "into")


def test_a_tokenizer_json_is_kept_as_it_is_and_says_itself_how_it_reads(place: Path, tmp_path: Path) -> None:
    source, into = saved(place, tmp_path / "bert"), tmp_path / "results" / "bert"
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false, "tokenizer_class": "PreTrainedTokenizerFast"}')
    imported(place, source, into)
    assert (into / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_a_tokeniser_of_more_pieces_than_the_model_has_rows_is_refused_in_its_words(place: Path, tmp_path: Path) -> None:
    source = saved(place, tmp_path / "bert", vocab_size=192)
    with pytest.raises(InputError, match=r"tokenizer\.json: holds 200 pieces, but the model has 192, which is no"):
        imported(place, source, tmp_path / "into")


def test_a_cased_tokenizer_json_that_lowercases_is_reported(study: Any, place: Path, tmp_path: Path) -> None:
    source = saved(place, tmp_path / "bert")
    pieces = Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab()
    capitals = {piece if number % 3 or piece in SPECIAL_PIECES else piece.upper(): number for piece, number in pieces.items()}
    bert_tokenizer(capitals).save(str(source / "tokenizer.json"))
    status, _, err = study("import-encoder", source, "--into", tmp_path / "into", *text(place))
    assert status == 0, err
    assert " pieces have capitals, such as " in err


def test_an_encoder_of_the_hub_keeps_its_name(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = saved(place, tmp_path / "snapshot"), list[str]()

    def fetched(name: str, **_: Any) -> str:
        asked.append(name)
        return str(source)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    run = import_encoder("hub:them/tiny", SweepFolder(tmp_path / "into"), config(place / "text.txt").data, Execution(), "fp32")
    assert asked == ["them/tiny"]
    assert run.config().recipe.start.startswith("them/tiny/")


def test_an_encoder_that_is_there_is_left_alone_and_another_lies_beside_it(place: Path, tmp_path: Path) -> None:
    source, into = saved(place, tmp_path / "bert"), tmp_path / "results" / "bert"
    first = imported(place, source, into)
    written = first.record_file.stat().st_mtime_ns
    assert imported(place, source, into).path == first.path
    assert first.record_file.stat().st_mtime_ns == written
    other = imported(place, saved(place, tmp_path / "other", initializer_range=0.1), into)
    assert {run.run_id for run in SweepFolder(into).runs()} == {first.run_id, other.run_id}


def test_an_import_that_meets_a_full_disk_says_so_and_is_made_when_it_is_given_again(
    study: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, into = saved(place, tmp_path / "bert"), tmp_path / "into"
    with monkeypatch.context() as full:
        full.setattr("study.training.run.write_atomically", no_space)
        status, out, err = study("import-encoder", source, "--into", into, *text(place))
    (run,) = SweepFolder(into).runs()
    assert (status, out) == (2, "")
    why = r"\(FAILED: disk full: .*No space left on device.*\); mend that, and give the command again"
    assert re.fullmatch(rf"error: {run.path}: did not complete {why}", err.splitlines()[-1])
    status, out, err = study("import-encoder", source, "--into", into, *text(place))
    assert (status, "nats per masked token" in out) == (0, True), err
    record = run.record()
    assert record is not None
    assert (record.state, record.attempts) == ("COMPLETED", 2)


def no_space(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_an_encoder_without_a_finite_loss_is_refused_before_anything_is_written(
    study: Any, place: Path, tmp_path: Path
) -> None:
    source = saved(place, tmp_path / "bert")
    weights = safetensors.torch.load_file(source / "model.safetensors")
    for name in ("intermediate", "output"):
        weights[f"bert.encoder.layer.1.{name}.dense.weight"].fill_(1e30)
    safetensors.torch.save_file(weights, source / "model.safetensors", {"format": "pt"})
    status, out, err = study("import-encoder", source, "--into", tmp_path / "into", *text(place))
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert f"error: {source}: has no finite loss on this text (the validation loss is nan after step 0); fetch or save" in err
    assert not (tmp_path / "into").exists()


def test_an_encoder_for_which_memory_does_not_suffice_is_refused_before_anything_is_written(
    study: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr("study.training.trainer.Training.validated", lacks)
    source = saved(place, tmp_path / "bert")
    status, out, err = study("import-encoder", source, "--into", tmp_path / "into", *text(place))
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert f"error: {source}: needs more memory than there is (DefaultCPUAllocator: can't allocate memory" in err
    assert not (tmp_path / "into").exists()


@pytest.mark.slow
def test_runs_begin_with_layers_of_it_and_learn_from_it(study: Any, place: Path, tmp_path: Path) -> None:
    run = imported(place, saved(place, tmp_path / "bert"), tmp_path / "results" / "bert")
    data = {"tokenizer": {"kind": "file", "path": str(tmp_path / "results" / "bert" / "tokenizer.json")}}
    shape = {"depth": 2, "positions": 24}
    for knob, value in (("start", f"{run.path}:spread"), ("teacher", str(run.path))):
        values = {"recipe": {knob: value, "budget": {"steps": 2}}, "architecture": shape, "data": data}
        student = trained(tmp_path / "results" / "mine", config(place / "text.txt", **values))
        record = student.record()
        assert record is not None
        assert (record.state, record.reason) == ("COMPLETED", None)
    sweep = write_sweep(tmp_path / "mine.yaml", place / "text.txt")
    status, _, err = study("plan", sweep, "--results", tmp_path / "results")
    assert status == 0, err


def test_no_steps_are_for_weights_that_were_trained(place: Path) -> None:
    with pytest.raises(InputError, match=r"steps 0 trains nothing; set recipe\.start to the run that has the weights"):
        config(place / "text.txt", recipe={"budget": {"steps": 0}})
    start, teacher = (f"runs/{digit * 16}" for digit in "01")
    with pytest.raises(InputError, match=f"steps 0 trains nothing; leave out the teacher {teacher}"):
        config(place / "text.txt", recipe={"budget": {"steps": 0}, "start": start, "teacher": teacher})
    assert config(place / "text.txt", recipe={"budget": {"steps": 0}, "start": start}).tokens == 0


def broken(place: Path, folder: Path, case: str) -> Path:
    """A saved model with one thing wrong."""
    source = saved(place, folder)
    settings, weights = source / "config.json", source / "model.safetensors"
    values = json.loads(settings.read_bytes())
    changes = {
        "a type": {"model_type": "gpt2"},
        "Longformer": {"model_type": "longformer"},
        "an activation": {"hidden_act": "silu"},
        "a norm": {"layer_norm_eps": 2.0},
        "heads": {"num_attention_heads": 3},
        "a size": {"intermediate_size": 48},
        "a length": {"max_position_embeddings": 0.5},
        "letters": {"vocab_size": 26},
        "pieces": {"vocab_size": 210},
    }
    settings.write_text(json.dumps(values | changes.get(case, {})))
    if case == "no JSON":
        settings.write_text("{")
    if case == "a depth":
        settings.write_text("[" * 100_000)
    if case == "a list":
        settings.write_text("[]")
    if case in ("no config", "no weights", "no tokeniser"):
        {"no config": settings, "no weights": weights, "no tokeniser": source / "tokenizer.json"}[case].unlink()
    if case == "damage":
        weights.write_bytes(weights.read_bytes()[:100])
    if case == "no encoder":
        tensors = safetensors.torch.load_file(weights)
        del tensors["bert.embeddings.word_embeddings.weight"]
        safetensors.torch.save_file(tensors, weights)
    if case == "pieces":
        tensors = safetensors.torch.load_file(weights)
        for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
            tensors[name] = torch.cat([tensors[name], tensors[name][:10]])
        safetensors.torch.save_file(tensors, weights)
    if setting := {"cased": "do_lower_case", "accents": "strip_accents", "characters": "tokenize_chinese_chars"}.get(case):
        (source / "tokenizer.json").rename(source / "kept.json")
        (source / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *map(str, range(195))]))
        (source / "tokenizer_config.json").write_text(json.dumps({"strip_accents": None, setting: False}))
    return source


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("a type", "is a model of type gpt2; supported types are bert, roformer, megatron-bert, esm, electra, albert, "),
        (
            "Longformer",
            "is a model of type longformer, whose global attention has products of its own; ",
        ),
        ("an activation", "has hidden_act silu; only gelu or gelu_python or gelu_new"),
        ("a norm", "config.json.layer_norm_eps: 2.0 is above the most allowed, 1"),
        ("heads", "heads do not divide width 16"),
        ("a length", "config.json.max_position_embeddings: 0.5 is not a whole number"),
        ("letters", "config.json.vocab_size: is 26, and a vocabulary has 64 pieces or more"),
        ("a size", "intermediate.dense.weight of 32 x 16, unlike its config.json"),
        ("pieces", "holds 200 pieces"),
        ("no encoder", "holds no bert.embeddings.word_embeddings.weight, which BertForMaskedLM has"),
        ("no JSON", "config.json: is not JSON"),
        ("a depth", "config.json: is not JSON: it is nested too deeply"),
        ("a list", "config.json: is not a JSON object"),
        ("no config", "config.json: does not exist; save_pretrained writes it"),
        ("no weights", "open the model with transformers and save_pretrained it"),
        ("no tokeniser", "has neither tokenizer.json nor vocab.txt"),
        ("damage", "model.safetensors: is damaged"),
        ("cased", "has do_lower_case false, but vocab.txt lowercases text; save its tokeniser as a tokenizer.json"),
        ("accents", "has strip_accents false, but vocab.txt drops accents; save its tokeniser as a tokenizer.json"),
        ("characters", "has tokenize_chinese_chars false, but vocab.txt splits Chinese characters; save"),
    ],
)
def test_what_cannot_be_imported_is_refused_before_anything_is_written(
    study: Any, place: Path, tmp_path: Path, case: str, message: str
) -> None:
    source = broken(place, tmp_path / "bert", case)
    status, out, err = study("import-encoder", source, "--into", tmp_path / "into", *text(place))
    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence-length": 32}, "--sequence-length: 32 is more than the encoder has positions; give 24 or fewer"),
        ({"sequence-length": 4}, "--sequence-length: "),
        ({"corpus": "nowhere.txt"}, "nowhere.txt"),
        ({"validation-sequences": 10**6}, "--validation-sequences: 1,000,000 are requested"),
    ],
)
def test_a_text_that_does_not_serve_is_refused_by_the_name_of_its_option(
    study: Any, place: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    source = saved(place, tmp_path / "bert")
    status, out, err = study("import-encoder", source, "--into", tmp_path / "into", *text(place, **options))
    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "into").exists()


def test_a_folder_keeps_one_tokeniser(study: Any, place: Path, tmp_path: Path) -> None:
    source = saved(place, tmp_path / "bert")
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "tokenizer.json").write_text("{}")
    err = study("import-encoder", source, "--into", tmp_path / "into", *text(place))[2]
    assert "differs from the tokeniser" in err
    err = study("import-encoder", tmp_path / "nowhere", "--into", tmp_path / "into")[2]
    assert err.startswith(
        f"error: {tmp_path / 'nowhere'}: is not a folder; give a folder that save_pretrained wrote, or hub:NAME"
    )
    assert run_folder(tmp_path, config(place / "text.txt")).record() is None
