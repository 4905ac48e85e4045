"""Encoders of every family, as transformers saves them, compute here what they compute there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedModel

from study.base.errors import InputError
from study.counting.named_models import architecture_of
from study.counting.parameters import parameters
from study.model.in_transformers import has_mlm_head, our_architecture, our_weights
from study.model.masked_language_model import MaskedLanguageModel
from study.model.stored_weights import trained_weights
from study.model.transformers_classes import class_in
from study.scoring.exporting import export
from study.scoring.pretrained import Pretrained
from study.scoring.targets import target
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from study.training.importing import import_encoder, to_text
from study.training.trained_runs import check_trained_runs
from tests.small import config, trained, write_corpus

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"vocab_size": 200, "max_position_embeddings": 26, "pad_token_id": 1}

SAVED: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {"layer_norm_eps": 1e-5, "hidden_act": "relu"},
    "BertForPreTraining": {},
    "BertModel": {},
    "BertForSequenceClassification": {},
    "RobertaForMaskedLM": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "RobertaModel": {"type_vocab_size": 1},
    "XLMRobertaForMaskedLM": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "CamembertForMaskedLM": {"type_vocab_size": 1},
    "DistilBertForMaskedLM": {"sinusoidal_pos_embds": True},
    "DistilBertModel": {},
    "AlbertForMaskedLM": {"embedding_size": 8, "hidden_act": "gelu_new"},
    "AlbertModel": {"embedding_size": 8, "num_hidden_groups": 2, "hidden_act": "gelu"},
    "ElectraForMaskedLM": {"embedding_size": 8},
    "ElectraForPreTraining": {"embedding_size": 16},
    "ModernBertForMaskedLM": {"local_attention": 6},
    "ModernBertModel": {"layer_types": ["full_attention", "sliding_attention"] * 2, "local_attention": 4},
    "ModernBertForSequenceClassification": {"layer_types": ["sliding_attention"] * 4, "local_attention": 4},
    "EsmForMaskedLM": {
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "layer_norm_eps": 1e-5,
        "token_dropout": False,
        "mask_token_id": 4,
    },
    "MegatronBertForMaskedLM": {},
    "DebertaForMaskedLM": {
        "relative_attention": True,
        "pos_att_type": "c2p|p2c",
        "position_biased_input": False,
        "max_relative_positions": 10,
    },
    "DebertaV2ForMaskedLM": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "share_att_key": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "conv_act": "gelu",
        "legacy": False,
    },
    "DebertaV2Model": {
        "relative_attention": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "share_att_key": True,
        "position_buckets": -1,
        "norm_rel_ebd": "layer_norm",
    },
    "RoFormerForMaskedLM": {"embedding_size": 8},
    "MobileBertForMaskedLM": {"embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 3},
    "MobileBertForPreTraining": {"embedding_size": 8, "intra_bottleneck_size": 6, "num_feedforward_networks": 1},
    "MobileBertModel": {"embedding_size": 8, "intra_bottleneck_size": 8, "hidden_act": "gelu"},
}
"""What was saved, with its configuration."""


def made(name: str, **changes: Any) -> PreTrainedModel:
    """A small model of transformers with random weights everywhere."""
    cls = getattr(transformers, name)
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    names |= {"intermediate_size": "hidden_dim"}
    renamed = names if name.startswith("DistilBert") else {}
    sizes = {renamed.get(size, size): value for size, value in SIZES.items()}
    torch.manual_seed(0)
    model: PreTrainedModel = cls(cls.config_class(**sizes | SAVED.get(name, {}) | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def read(folder: Path) -> tuple[MaskedLanguageModel, bool]:
    """The encoder in a folder, and whether it has its MLM head."""
    settings = json.loads((folder / "config.json").read_bytes())
    weights: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        weights |= safetensors.torch.load_file(file)
    family = class_in(settings, "theirs")
    ours = MaskedLanguageModel(our_architecture(settings, "theirs")).eval()
    ours.load_state_dict(our_weights(weights, ours.architecture, family, "theirs"))
    return ours, has_mlm_head(weights, family)


@pytest.mark.parametrize("name", SAVED)
def test_an_encoder_computes_what_its_class_does(name: str, tmp_path: Path) -> None:
    """Hidden states and, with its MLM head, logits, of whole and padded sequences."""
    theirs = made(name)
    theirs.save_pretrained(tmp_path)
    ours, predicts = read(tmp_path)
    assert predicts == name.endswith(("MaskedLM", "BertForPreTraining"))
    tokens = torch.randint(5, 200, (3, 24), generator=torch.Generator().manual_seed(1))
    attended = (torch.arange(24) < 20).expand(3, -1)
    with torch.no_grad():
        for mask in (None, attended):
            given = {"input_ids": tokens} | ({} if mask is None else {"attention_mask": mask.long()})
            if mask is not None and name.startswith("MobileBert"):  # it reads padding beside the last token
                given = {"input_ids": tokens[:, :20]}
            seen = slice(None) if mask is None else slice(20)
            hidden = ours.encoder(tokens, None, mask)
            expected = theirs.base_model(**given).last_hidden_state
            torch.testing.assert_close(hidden[:, seen], expected[:, seen], atol=1e-5, rtol=1e-5)
            if predicts:
                output = theirs(**given)
                logits = output.prediction_logits if hasattr(output, "prediction_logits") else output.logits
                torch.testing.assert_close(ours.logits(hidden)[:, seen], logits[:, seen], atol=1e-5, rtol=1e-5)


def test_esm_leaves_out_the_embeddings_of_masks_and_scales_the_others(tmp_path: Path) -> None:
    theirs = made("EsmForMaskedLM", token_dropout=True)
    theirs.save_pretrained(tmp_path)
    ours, _ = read(tmp_path)
    assert ours.architecture.token_dropout == 4
    tokens = torch.randint(5, 200, (3, 24), generator=torch.Generator().manual_seed(1))
    tokens[0, :6] = tokens[1, 3] = 4
    attended = torch.arange(24) < torch.tensor([[24], [20], [7]])
    with torch.no_grad():
        for mask in (None, attended):
            output = ours(tokens, attended_BxS=mask)
            logits = theirs(tokens, attention_mask=None if mask is None else mask.long()).logits
            seen = slice(None) if mask is None else mask
            torch.testing.assert_close(output[seen], logits[seen], atol=1e-5, rtol=1e-5)


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("bert", {}),
    "roberta-base": (
        "roberta",
        {"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 50265},
    ),
    "xlm-r-base": (
        "xlm-roberta",
        {"layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 250002},
    ),
    "albert-base": (
        "albert",
        {"embedding_size": 128, "hidden_act": "gelu_new", "inner_group_num": 1, "num_hidden_groups": 1, "vocab_size": 30000}
        | {"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0, "pad_token_id": 0},
    ),
    "electra-small": (
        "electra",
        {"embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
        | {"summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True},
    ),
    "deberta-base": (
        "deberta",
        {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": -1, "position_biased_input": False}
        | {"layer_norm_eps": 1e-7, "type_vocab_size": 0, "vocab_size": 50265},
    ),
    "deberta-v3-base": (
        "deberta-v2",
        {"relative_attention": True, "pos_att_type": "p2c|c2p", "max_relative_positions": -1, "position_biased_input": False}
        | {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
        | {"layer_norm_eps": 1e-7, "type_vocab_size": 0, "vocab_size": 128100},
    ),
    "mobilebert": (
        "mobilebert",
        {"classifier_activation": False, "embedding_size": 128, "hidden_act": "relu", "hidden_dropout_prob": 0.0}
        | {"hidden_size": 512, "intermediate_size": 512, "intra_bottleneck_size": 128, "key_query_shared_bottleneck": True}
        | {"normalization_type": "no_norm", "num_attention_heads": 4, "num_feedforward_networks": 4, "num_hidden_layers": 24}
        | {"trigram_input": True, "true_hidden_size": 128, "use_bottleneck": True, "use_bottleneck_attention": False},
    ),
    "minilm-l12": ("bert", {"hidden_size": 384, "intermediate_size": 1536}),
    "esm2-8m": (
        "esm",
        {"hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 6, "num_attention_heads": 20, "vocab_size": 33}
        | {"emb_layer_norm_before": False, "esmfold_config": None, "is_folding_model": False, "layer_norm_eps": 1e-5}
        | {"mask_token_id": 32, "max_position_embeddings": 1026, "pad_token_id": 1, "position_embedding_type": "rotary"}
        | {"token_dropout": True, "vocab_list": None},
    ),
    "modernbert-base": (
        "modernbert",
        {"attention_bias": False, "classifier_pooling": "mean", "decoder_bias": True, "global_attn_every_n_layers": 3}
        | {"global_rope_theta": 160000.0, "hidden_activation": "gelu", "intermediate_size": 1152, "local_attention": 128}
        | {
            "local_rope_theta": 10000.0,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "norm_bias": False,
            "norm_eps": 1e-5,
        }
        | {"num_hidden_layers": 22, "position_embedding_type": "absolute", "tie_word_embeddings": True, "vocab_size": 50368},
    ),
}
"""Configurations on the Hugging Face hub by the name of the encoder here: the type, and what differs from BERT-Base's."""

BASE: dict[str, Any] = {"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1}
BASE |= {"hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12}
BASE |= {"max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2}
BASE |= {"vocab_size": 30522}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read_as_the_encoder_of_that_name(name: str) -> None:
    kind, changes = PUBLISHED[name]
    settings = BASE | {"model_type": kind} | changes
    ours, theirs = our_architecture(settings, "theirs"), architecture_of(name, {})
    assert ours.sizes == theirs.sizes
    unused_rows = class_in(settings, "theirs").first_position  # RoBERTa counts positions from 2
    counts = [parameters(each).parameters_encoder for each in (ours, theirs)]
    assert counts[1] - counts[0] == unused_rows * ours.width + theirs.contact_head * (theirs.depth * theirs.heads + 1)


class NeoBert(nn.Module):
    """NeoBERT as its authors' model on Hugging Face computes it (Le Breton et al. 2025, arXiv:2502.19587)."""

    def __init__(self, depth: int, width: int, heads: int, ffn: int, vocabulary: int) -> None:
        super().__init__()
        self.heads = heads
        self.model = nn.ModuleDict({"encoder": nn.Embedding(vocabulary, width), "layer_norm": nn.RMSNorm(width, eps=1e-5)})
        block = {"qkv": (width, 3 * width), "wo": (width, width)}
        self.model["transformer_encoder"] = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(*sizes, bias=False) for name, sizes in block.items()}
                | {name: nn.RMSNorm(width, eps=1e-5) for name in ("attention_norm", "ffn_norm")}
                | {"ffn": nn.ModuleDict({"w12": nn.Linear(width, 2 * ffn, False), "w3": nn.Linear(ffn, width, False)})}
            )
            for _ in range(depth)
        )
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model["encoder"](tokens)
        batch, length, width = x.shape
        half = width // self.heads // 2
        angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]
        for block in cast("list[Any]", self.model["transformer_encoder"]):
            by_head = block["qkv"](block["attention_norm"](x)).view(batch, length, self.heads, -1)
            query, key, value = by_head.chunk(3, -1)
            query, key = (
                torch.view_as_real(torch.view_as_complex(each.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)
                for each in (query, key)
            )
            mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
            x = x + block["wo"](mixed.transpose(1, 2).flatten(2))
            first, second = block["ffn"]["w12"](block["ffn_norm"](x)).chunk(2, -1)
            x = x + block["ffn"]["w3"](F.silu(first) * second)
        logits: Tensor = self.decoder(self.model["layer_norm"](x))
        return logits


def test_neobert_computes_what_its_authors_model_does(tmp_path: Path) -> None:
    """Its inner width is two thirds of what its config.json says, rounded up to a multiple of eight."""
    theirs = NeoBert(3, 16, 2, 40, 200)
    settings = SIZES | {"model_type": "neobert", "num_hidden_layers": 3, "intermediate_size": 50, "max_length": 24}
    settings |= {"norm_eps": 1e-5, "hidden_act": "SwiGLU"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours, predicts = read(tmp_path)
    tokens = torch.randint(5, 200, (3, 24))
    assert predicts
    torch.testing.assert_close(ours(tokens), theirs(tokens), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    write_corpus(folder / "text.txt")
    return folder


def robertas_tokenizer(text: Path) -> Tokenizer:
    """One of words, with RoBERTa's special pieces in its order."""
    words = dict.fromkeys(text.read_text().split())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *words]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return tokenizer


def imported(place: Path, source: Path, into: Path) -> tuple[RunFolder, list[str]]:
    messages: list[str] = []
    data = config(place / "text.txt").data
    return import_encoder(str(source), SweepFolder(into), data, Execution(), "fp32", messages.append), messages


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_shards_half_precision_padding_and_other_special_pieces_are_read(
    place: Path, tmp_path: Path, precision: torch.dtype
) -> None:
    tokenizer = robertas_tokenizer(place / "text.txt")
    pieces = tokenizer.get_vocab_size()
    padded = pieces + 8 - pieces % 8
    theirs = made("RobertaForMaskedLM", vocab_size=padded, bos_token_id=0, eos_token_id=2).to(precision)
    theirs.save_pretrained(tmp_path / "roberta", max_shard_size="5KB")
    tokenizer.save(str(tmp_path / "roberta" / "tokenizer.json"))
    run, messages = imported(place, tmp_path / "roberta", tmp_path / "into")
    assert messages == [f"The vocabulary is cut from {padded:,} rows to the {pieces:,} pieces of the tokeniser."]
    tokens = torch.randint(5, pieces, (3, 16))
    ours = Pretrained(run).masked_language_model()
    torch.testing.assert_close(ours(tokens), theirs.float()(tokens).logits[..., :pieces], atol=1e-5, rtol=1e-5)
    kept, record = Pretrained(run), run.record()
    assert (kept.special.cls, kept.special.pad, kept.special.sep, kept.special.unk) == (0, 1, 2, 3)
    assert kept.special.mask == pieces - 1
    word = next(piece for piece in tokenizer.get_vocab() if not piece.startswith("<"))
    assert kept.tokenizer.encode(word, add_special_tokens=False).ids == [tokenizer.token_to_id(word)]
    assert record is not None
    assert record.loss_nats is not None
    assert record.config.architecture.positions == 24


def test_settings_name_the_special_pieces_and_a_unigram_model_is_read(place: Path, tmp_path: Path) -> None:
    words = dict.fromkeys((place / "text.txt").read_text().split())
    specials = ["<begin>", "<pad>", "<end>", "<unk>", "<hole>"]
    pieces = [(piece, 0.0) for piece in (*specials, *(f"▁{word}" for word in words), *"abcdegiklmnoprstu▁")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    made("DistilBertForMaskedLM", vocab_size=len(pieces)).save_pretrained(tmp_path / "unigram")
    tokenizer.save(str(tmp_path / "unigram" / "tokenizer.json"))
    with pytest.raises(InputError, match=r"lacks \[CLS\], \[SEP\], \[MASK\]"):
        imported(place, tmp_path / "unigram", tmp_path / "into")
    settings = {"cls_token": "<begin>", "sep_token": {"content": "<end>"}, "mask_token": "<hole>"}
    (tmp_path / "unigram" / "tokenizer_config.json").write_text(json.dumps(settings))
    run, _ = imported(place, tmp_path / "unigram", tmp_path / "into")
    assert Pretrained(run).special.all == (1, 3, 0, 2, 4)


def test_an_encoder_without_its_head_is_scored_and_a_start_but_has_no_loss(place: Path, tmp_path: Path) -> None:
    source = tmp_path / "electra"
    theirs = made("ElectraForPreTraining", num_hidden_layers=2, max_position_embeddings=16)
    theirs.save_pretrained(source)
    toy = trained(place / "results", config(place / "text.txt"))
    (source / "tokenizer.json").write_text(Pretrained(toy).tokenizer.to_str())
    run, messages = imported(place, source, tmp_path / "into")
    assert messages == ["It has no MLM head, so it has no loss: it can be scored and be a start, but not teach."]
    record = run.record()
    assert record is not None
    assert (record.state, record.loss_nats, record.untrained_head) == ("COMPLETED", None, True)
    assert record.exclusion == "it was imported without an MLM head, so it has no loss"
    assert "it has no loss, for lack of an MLM head" in to_text(run, record)
    assert [one.folder.path for one in target(tmp_path / "into").runs] == [run.path]
    tokenizer = {"tokenizer": {"kind": "file", "path": str(tmp_path / "into" / "tokenizer.json")}}
    start, teacher = ({knob: str(run.path), "budget": {"steps": steps}} for knob, steps in (("start", 0), ("teacher", 2)))
    for recipe in (start, teacher):
        with pytest.raises(InputError, match="was imported without an MLM head and predicts nothing"):
            check_trained_runs([config(place / "text.txt", recipe=recipe, data=tokenizer)])
    student = trained(
        tmp_path / "mine", config(place / "text.txt", recipe={"start": str(run.path), "budget": {"steps": 2}}, data=tokenizer)
    )
    begun = student.record()
    assert begun is not None
    assert begun.loss_nats is not None
    export(Pretrained(run), tmp_path / "exported")
    again = transformers.AutoModel.from_pretrained(tmp_path / "exported").eval()
    tokens = torch.randint(5, 200, (2, 16))
    torch.testing.assert_close(
        again(tokens).last_hidden_state, theirs.base_model(tokens).last_hidden_state, atol=1e-5, rtol=1e-5
    )
    assert "head.bias" in trained_weights(run)
