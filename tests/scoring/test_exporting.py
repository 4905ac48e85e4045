"""What `study export` writes opens in transformers and computes what the run's encoder does, of every kind that is built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import ByteLevel
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from study.config.score_config import Knobs
from study.counting.parameters import parameters
from study.scoring.exporting import export, model_card
from study.scoring.pretrained import Pretrained
from study.store.run_folder import RunFolder
from study.store.score_records import readable_scores
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from study.training.importing import import_encoder
from tests.small import config, trained, write_corpus
from tests.synthetic_scores import TASKS, add_score
from tests.transformers_models import CLASSES, DEBERTA, theirs_of

FAST = ("BertForMaskedLM", "ModernBertForMaskedLM")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exporting")
    write_corpus(folder / "text.txt")
    return folder


def run_of(place: Path, **architecture: Any) -> RunFolder:
    values = {"recipe": {"budget": {"steps": 2}, "dropout": 0.1}, "architecture": architecture}
    return trained(place / "results" / "toy", config(place / "text.txt", **values))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CLASSES])
def test_an_exported_run_opens_and_predicts_as_it_did(study: Any, place: Path, name: str) -> None:
    run = run_of(place, **CLASSES[name])
    into = place / name
    status, out, err = study("export", run.path, "--into", into)
    assert (status, err) == (0, "")
    record = run.record()
    assert record is not None
    padded = "MobileBertForMaskedLM reads [PAD] beside the last token of a padded sequence, and a run here nothing.\n"
    assert out == (padded if name == "MobileBertForMaskedLM" else "") + (
        f"{record.parameters:,} parameters: {into}; open it with "
        f"transformers.{name}.from_pretrained({str(into)!r}), or any Auto class\n"
    )
    theirs, report = AutoModelForMaskedLM.from_pretrained(into, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokenizer, pretrained = AutoTokenizer.from_pretrained(into), Pretrained(run)
    assert type(theirs).__name__ == name
    read = tokenizer(["kame gila", "nome dabe kame babadab"], padding=True, return_tensors="pt")
    assert read["input_ids"][:, 0].tolist() == [pretrained.special.cls] * 2
    pieces = pretrained.tokenizer.encode("kame gila", add_special_tokens=False).ids
    assert read["input_ids"][0, 1 : 1 + len(pieces)].tolist() == pieces
    assert read["input_ids"][0, 1 + len(pieces)] == pretrained.special.sep
    attended = read["attention_mask"].bool()
    if name == "MobileBertForMaskedLM":  # it reads [PAD] beside the last token
        attended = attended & attended.all(1, keepdim=True)
    expected = pretrained.masked_language_model()(read["input_ids"], None, None, read["attention_mask"].bool())
    torch.testing.assert_close(theirs.eval()(**read).logits[attended], expected[attended], atol=1e-5, rtol=0)
    assert {module.p for module in theirs.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}
    assert pretrained.special.mask in tokenizer("kame [MASK]")["input_ids"]
    assert tokenizer.model_max_length == run.config().data.sequence_length
    bare = AutoModel.from_pretrained(into).eval()
    encoded = pretrained.masked_language_model().encoder(read["input_ids"], None, read["attention_mask"].bool())
    torch.testing.assert_close(bare(**read).last_hidden_state[attended], encoded[attended], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("Bert", "mlm_nsp"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("Albert", "mlm_sop"), ("RoFormer", "mlm_nsp"))),
    ],
)
def test_a_head_for_pairs_is_exported_where_the_class_has_one(study: Any, place: Path, name: str, objective: str) -> None:
    values = {"recipe": {"budget": {"steps": 2}, "objective": objective}, "architecture": CLASSES[f"{name}ForMaskedLM"]}
    run, into = trained(place / "results" / "pairs", config(place / "text.txt", **values)), place / f"{name}Pairs"
    status, out, err = study("export", run.path, "--into", into)
    assert (status, err) == (0, "")
    record = run.record()
    assert record is not None
    if name == "RoFormer":
        assert out.startswith("The head for pairs of segments is left out, since RoFormerForMaskedLM has none.\n")
        assert f"{record.parameters - 16 * 16 - 16 - 2 * 16 - 2:,} parameters" in out
        _, report = AutoModelForMaskedLM.from_pretrained(into, output_loading_info=True)
        assert not report["unexpected_keys"]
        return
    assert f"{record.parameters:,} parameters: {into}; open it with transformers.{name}ForPreTraining.from_pretrained(" in out
    theirs, report = AutoModelForPreTraining.from_pretrained(into, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    read = AutoTokenizer.from_pretrained(into)("kame gila", "nome dabe", return_tensors="pt")
    actual, ours = theirs.eval()(**read), Pretrained(run).masked_language_model()
    judged = ours.pair_logits(read["input_ids"], read["token_type_ids"])
    torch.testing.assert_close(
        actual.seq_relationship_logits if name == "Bert" else actual.sop_logits, judged, atol=1e-5, rtol=0
    )
    words = ours(read["input_ids"], None, read["token_type_ids"])
    torch.testing.assert_close(actual.prediction_logits, words, atol=1e-5, rtol=0)


def test_an_exported_run_is_fine_tuned_by_classes_of_transformers(place: Path) -> None:
    run = run_of(place)
    export(Pretrained(run), place / "tuned")
    theirs = AutoModelForSequenceClassification.from_pretrained(place / "tuned", num_labels=2)
    read = AutoTokenizer.from_pretrained(place / "tuned")("kame", "gila", return_tensors="pt")
    assert read["token_type_ids"].tolist()[0][-2:] == [1, 1]
    theirs(**read, labels=torch.tensor([1])).loss.backward()
    assert json.loads((place / "tuned" / "record.json").read_bytes())["run_id"] == run.run_id


@pytest.mark.parametrize("post_processor", [None, ByteLevel(trim_offsets=False)])
def test_a_tokeniser_that_says_nothing_of_brackets_gets_those_of_bert(
    place: Path, tmp_path: Path, post_processor: ByteLevel | None
) -> None:
    plain = Tokenizer(WordPiece(Pretrained(run_of(place)).tokenizer.get_vocab(), unk_token="[UNK]"))
    plain.pre_tokenizer = BertPreTokenizer()
    if post_processor is not None:
        plain.post_processor = post_processor
    plain.save(str(place / "plain.json"))
    data = {"tokenizer": {"kind": "file", "path": str(place / "plain.json")}}
    run = Pretrained(
        trained(place / "results" / "plain", config(place / "text.txt", recipe={"budget": {"steps": 2}}, data=data))
    )
    export(run, tmp_path / "new")
    read = AutoTokenizer.from_pretrained(tmp_path / "new")("kame")["input_ids"]
    assert (read[0], read[-1], run.special.unk in read) == (run.special.cls, run.special.sep, False)


def test_a_folder_that_holds_something_is_left_alone(study: Any, place: Path, tmp_path: Path) -> None:
    run = run_of(place)
    (tmp_path / "mine").write_text("mine")
    status, _, err = study("export", run.path, "--into", tmp_path)
    assert (status, [file.name for file in tmp_path.iterdir()]) == (2, ["mine"])
    assert f"{tmp_path}: is not empty, and no file is overwritten; give a new folder" in err
    assert "is a file; give a new folder" in study("export", run.path, "--into", tmp_path / "mine")[2]
    assert "is neither the folder of a run" in study("export", tmp_path, "--into", tmp_path / "new")[2]
    assert not (tmp_path / "new").exists()


def test_an_export_has_a_model_card_and_is_pushed_without_what_names_this_machine(
    study: Any, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, into, calls = run_of(place), tmp_path / "new", list[tuple[str, dict[str, Any]]]()

    class Hub:
        """What the hub is asked for."""

        def create_repo(self, name: str, **options: Any) -> str:
            calls.append((name, options))
            return f"https://hub/{name}"

        def upload_folder(self, **options: Any) -> None:
            calls.append(("upload", options))
            if options["repo_id"] == "me/refused":
                raise OSError("401 Unauthorized")

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    status, out, err = study("export", run.path, "--into", into, "--push", "me/encoder")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "Pushed to https://hub/me/encoder; its README.md wants a licence"
    (created, settings), (_, upload) = calls
    assert (created, settings) == ("me/encoder", {"private": True, "exist_ok": True})
    assert (upload["folder_path"], upload["ignore_patterns"]) == (into, ["record.json"])
    card, record = (into / "README.md").read_text(), run.record()
    assert record is not None
    assert record.loss_nats is not None
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["library_name"], head["pipeline_tag"], head["license"]) == ("transformers", "fill-mask", "other")
    for line in (
        f"{record.loss_nats:.4f}",
        "order of words",
        f"{record.parameters:,} parameters",
        "| data.corpus | text.txt |",
    ):
        assert line in card
    assert str(place) not in card
    assert f"written from run `{run.run_id}` of the sweep `test`" in card
    assert "imported" not in card
    err = study("export", run.path, "--into", tmp_path / "other", "--push", "me/refused")[2]
    assert err.startswith("error: me/refused: cannot be pushed: 401 Unauthorized; log in with `hf auth login`")


def test_a_model_card_averages_seeds_of_one_setting_and_lists_no_random_weights(place: Path, tmp_path: Path) -> None:
    few, score = Knobs(max_train_examples=50), TASKS["sst2"]
    run = trained(tmp_path, config(place / "text.txt", recipe={"budget": {"steps": 2}}))
    record = run.record()
    assert record is not None
    for seed in range(3):
        add_score(SweepFolder(tmp_path), record, "sst2", score, "fine_tune", seed, 0.89 + seed / 100)
        add_score(SweepFolder(tmp_path), record, "sst2", score, "fine_tune", seed, 0.5, few)
        add_score(SweepFolder(tmp_path), record, "sst2", score, "random_init", seed, 0.6)
    (exported,) = export(Pretrained(run), tmp_path / "new")
    lines = [line for line in model_card(record, readable_scores([run]), exported).splitlines() if "sst2" in line]
    assert lines == [
        r"| sst2 | fine\_tune | accuracy | 0.9000 | 3 |",
        r"| sst2 (max\_train\_examples=50) | fine\_tune | accuracy | 0.5000 | 3 |",
    ]


def test_a_mask_decoder_stays_with_its_run_and_its_encoder_is_exported(study: Any, place: Path, tmp_path: Path) -> None:
    """It serves pre-training: the run's loss is of a pass that no class has, and its features are of the plain encoder."""
    run = run_of(place, **DEBERTA | {"enhanced_mask_decoder": True})
    status, out, err = study("export", run.path, "--into", tmp_path / "new")
    record = run.record()
    assert (status, err) == (0, "")
    assert record is not None
    note = "The MLM head is left out, since DebertaForMaskedLM has no enhanced mask decoder for it to read."
    counted = parameters(record.config.architecture).parameters_encoder
    assert out.startswith(f"{note}\n{counted:,} parameters: ")
    theirs = opened_as_said(out, tmp_path / "new")
    assert type(theirs).__name__ == "DebertaModel"
    tokens = torch.randint(5, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    encoder = Pretrained(run).masked_language_model().eval().encoder
    torch.testing.assert_close(theirs.eval()(tokens).last_hidden_state, encoder(tokens), atol=1e-5, rtol=0)


POOLED = ("BertForMaskedLM", "MegatronBertForMaskedLM", "EsmForMaskedLM", "AlbertForMaskedLM", "MobileBertForMaskedLM")
"""The classes whose bare encoder has a pooler, which no weights here belong to."""


def opened_as_said(out: str, into: Path) -> Any:
    """The model that the last line of an export and its card open, with every weight its own, and named so in the config."""
    named, options = re.findall(rf"open it with transformers\.(\w+)\.from_pretrained\('{into}'(.*?)\)", out)[-1]
    card, written = (into / "README.md").read_text(), json.loads((into / "config.json").read_bytes())
    assert f'model = {named}.from_pretrained("THIS_REPOSITORY"{options})' in card
    assert written["architectures"] == [named]
    given = {"add_pooling_layer": False} if options else {}
    theirs, report = getattr(transformers, named).from_pretrained(into, output_loading_info=True, **given)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert options == (", add_pooling_layer=False" if given else "")
    return theirs.eval()


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CLASSES])
def test_an_encoder_imported_without_a_head_is_exported_as_one(study: Any, place: Path, tmp_path: Path, name: str) -> None:
    toy = run_of(place, **CLASSES[name])
    source = theirs_of(Pretrained(toy).masked_language_model()).base_model
    source.save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text(Pretrained(toy).tokenizer.to_str())
    data = toy.config().data
    run = import_encoder(str(tmp_path / "source"), SweepFolder(tmp_path / "into"), data, Execution(), "fp32")
    status, out, _ = study("export", run.path, "--into", tmp_path / "new")
    assert status == 0
    assert out.startswith("The MLM head is left out, since the encoder was imported without one and it is untrained.\n")
    counted = parameters(run.config().architecture)
    assert f"\n{counted.parameters_encoder:,} parameters: " in out
    theirs, tokens = opened_as_said(out, tmp_path / "new"), torch.randint(5, 90, (2, 12))
    assert type(theirs) is type(source)
    assert (name in POOLED) is ("add_pooling_layer" in out)
    expected = source.eval()(tokens).last_hidden_state
    torch.testing.assert_close(theirs(tokens).last_hidden_state, expected, atol=1e-5, rtol=0)
    card = (tmp_path / "new" / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["pipeline_tag"], head["tags"]) == ("feature-extraction", ["feature-extraction", source.config.model_type])
    non_embedding = f"{counted.parameters_non_embedding:,} without embeddings"
    assert f"An encoder without an MLM head of {counted.parameters_encoder:,} parameters ({non_embedding})," in card
    assert not any(words in card for words in ("fill-mask", "ForMaskedLM", "training tokens", "masked language model"))
    assert f"imported from {run.config().recipe.start} and written from run `{run.run_id}`" in card
    assert "| recipe.start | source/" in card


def test_what_no_class_of_transformers_computes_is_refused_with_what_each_has(study: Any, place: Path, tmp_path: Path) -> None:
    run = run_of(place, depth=3, layer_groups=2, norm_bias=False)
    status, out, err = study("export", run.path, "--into", tmp_path / "new")
    assert (status, out) == (2, "")
    nearest, *others = (line.removeprefix("error: ") for line in err.splitlines())
    assert nearest == (
        "architecture: does not match BertForMaskedLM, which has layer_groups none, not 2, norm_bias True, not False"
    )
    assert len(others) == len(CLASSES) - 1
    assert any("AlbertForMaskedLM, which has norm_bias True, not False, layer_groups a divisor of" in line for line in others)
    assert not (tmp_path / "new").exists()


def test_what_no_class_of_transformers_has_at_all_is_refused_in_one_sentence(study: Any, place: Path, tmp_path: Path) -> None:
    run = run_of(place, distance_bias="learned", query_key_norm=True)
    status, out, err = study("export", run.path, "--into", tmp_path / "new")
    assert (status, out) == (2, "")
    message = (
        "architecture: has distance_bias learned, query_key_norm True, which none of BertForMaskedLM, RoFormerForMaskedLM, "
    )
    assert len(err.splitlines()) == 1
    assert message in err
    assert not (tmp_path / "new").exists()


def test_of_a_sweep_of_several_runs_one_is_to_be_named(study: Any, place: Path, tmp_path: Path) -> None:
    first, second = run_of(place), run_of(place, norm="pre")
    status, _, err = study("export", SweepFolder.of(first).path, "--into", tmp_path / "new")
    assert status == 2
    assert "suitable runs; give the folder of one, such as runs/" in err
    status, out, err = study("export", second.run_id[:6], "--into", tmp_path / "new", "--results", place / "results")
    assert (status, err) == (0, "")
    assert "MegatronBertForMaskedLM" in out
    assert study("pack", SweepFolder.of(first).path, "--delete-weights")[0] == 0
    _, _, err = study("export", first.path, "--into", tmp_path / "packed")
    assert "weights.safetensors: does not exist, but the weights are needed; its sweep is packed" in err
    _, _, err = study("export", "0" * 16, "--into", tmp_path / "none", "--results", place / "results")
    assert f"is neither a folder nor the id of a run in {place / 'results'}; `study status` lists runs" in err
