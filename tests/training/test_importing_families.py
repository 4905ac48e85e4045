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
from study.model.in_transformers import has_mlm_head, our_architecture, our_weights
from study.model.masked_language_model import MaskedLanguageModel
from study.model.trained_weights import trained_weights
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
                found = theirs(**given)
                logits = found.prediction_logits if hasattr(found, "prediction_logits") else found.logits
                torch.testing.assert_close(ours.logits(hidden)[:, seen], logits[:, seen], atol=1e-5, rtol=1e-5)


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
    told: list[str] = []
    data = config(place / "text.txt").data
    return import_encoder(str(source), SweepFolder(into), data, Execution(), "fp32", told.append), told


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
    run, told = imported(place, tmp_path / "roberta", tmp_path / "into")
    assert told == [f"The vocabulary is cut from {padded:,} rows to the {pieces:,} pieces of the tokeniser."]
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
    run, told = imported(place, source, tmp_path / "into")
    assert told == ["It has no MLM head, so it has no loss: it can be scored and be a start, but not teach."]
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
