"""Runs that begin with the weights of another one: which layers they keep, what is refused, and that they go on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from study.architecture import Architecture
from study.config import RunConfig
from study.errors import InputError
from study.folders import RunFolder
from study.model.cutting import cut, kept_layers
from study.model.masked_language_model import MaskedLanguageModel
from study.model.trained_weights import trained_weights
from study.records import RunRecord
from study.training.donors import check_donors
from tests.launching import Place
from tests.small import config, stop_after, trained, write_corpus
from tests.sweeps import write_topics

RECIPE: dict[str, Any] = {"learning_rate": 0.01, "batch_tokens": 256}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.fixture(scope="module")
def donor(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> RunFolder:
    """A trained run of four layers that has left the plateau."""
    return trained(tmp_path_factory.mktemp("donor"), toy(corpus, depth=4, budget={"steps": 200}))


def toy(corpus: Path, depth: int = 2, width: int = 16, **recipe: Any) -> RunConfig:
    sizes = {"depth": depth, "width": width, "vocabulary": 100}
    return config(corpus, architecture=sizes, recipe=RECIPE | recipe, data={"tokenizer": {"vocabulary": 100}})


def started(corpus: Path, start: object, depth: int = 2, **recipe: Any) -> RunConfig:
    return toy(corpus, depth, start=str(start), **recipe)


def test_layers_are_kept_as_the_literature_keeps_them() -> None:
    assert kept_layers(12, 6, "spread") == (0, 2, 4, 7, 9, 11), "DistilBERT's, of its scripts/extract_distilbert.py"
    assert kept_layers(12, 8, "first") == (0, 1, 2, 3, 4, 5, 6, 7)
    assert kept_layers(12, 3, "last") == (9, 10, 11)
    for keep in ("first", "last", "spread"):
        assert kept_layers(5, 5, keep) == (0, 1, 2, 3, 4)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"{wrong} layers cannot be kept of 2"):
            kept_layers(2, wrong, "first")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_cut_model_is_the_deep_one_without_the_other_blocks(norm: str) -> None:
    sizes = {"width": 16, "heads": 2, "ffn": 32, "vocabulary": 100, "positions": 8, "norm": norm}
    whole = MaskedLanguageModel(Architecture.parse(sizes | {"depth": 12}), seed=1).eval()
    short = MaskedLanguageModel(Architecture.parse(sizes | {"depth": 3}), seed=2).eval()
    short.load_state_dict(cut(whole.state_dict(), (1, 10, 11)))
    whole.encoder.blocks = nn.ModuleList(whole.encoder.blocks[layer] for layer in (1, 10, 11))
    tokens = torch.arange(16).view(2, 8)
    assert torch.equal(short(tokens), whole(tokens))


def test_a_donor_is_known_by_its_run_and_layers_wherever_it_lies(corpus: Path) -> None:
    run = "0123456789abcdef"
    ids = {start: started(corpus, start).fingerprint("data") for start in ("fresh", run, f"a/{run}", f"/b/{run}/:first")}
    other = started(corpus, f"a/{run}:last")
    assert len({*ids.values()}) == 2
    assert ids["fresh"] == toy(corpus).fingerprint("data")
    assert other.fingerprint("data") not in ids.values()
    assert started(corpus, f"b/{run}:last").key == other.key
    assert started(corpus, f"b/{run}/").setting(("recipe.start",)) == f"start={run}:first"
    assert RunConfig.parse(other.to_dict()) == other
    assert "start" not in toy(corpus).to_dict()["recipe"]
    for wrong in ("afresh", "results/mine", f"a/{run}:middle", f"{run}0"):
        with pytest.raises(InputError, match=r"recipe\.start: .*neither fresh nor the folder of a run"):
            started(corpus, wrong)


def test_a_run_goes_on_from_the_layers_of_another(corpus: Path, donor: RunFolder, tmp_path: Path) -> None:
    """A rate of next to nothing leaves the weights as they were given, and the donor's loss where no layer is cut."""
    still: dict[str, Any] = {"learning_rate": 1e-12, "weight_decay": 0.0, "budget": {"steps": 1}, "warmup_fraction": 0.0}
    whole = trained(tmp_path, started(corpus, donor.path, depth=4, **still))
    given, found = trained_weights(donor), trained_weights(whole)
    assert all(torch.allclose(found[name], given[name], atol=1e-9) for name in given)
    losses = [record.loss_nats for folder in (donor, whole) if (record := folder.record())]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    short = trained_weights(trained(tmp_path, started(corpus, f"{donor.path}:spread", **still)))
    expected = cut(given, (0, 3))
    assert short.keys() == expected.keys()
    assert all(torch.allclose(short[name], expected[name], atol=1e-9) for name in expected)


def test_a_stopped_run_goes_on_from_its_checkpoint_and_needs_its_donor_no_more(
    corpus: Path, donor: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = started(corpus, donor.path)
    straight = trained(tmp_path / "straight", wanted)
    with monkeypatch.context() as patch:
        assert trained(tmp_path / "stopped", wanted, stop_after(13, patch)).record() is None
    away = donor.path.rename(tmp_path / "away")
    try:
        resumed = trained(tmp_path / "stopped", wanted)
        assert trained(tmp_path / "stopped", wanted).attempts() == 2, "a run that has ended asks for no donor"
    finally:
        away.rename(donor.path)
    for name, tensor in trained_weights(straight).items():
        assert torch.equal(tensor, trained_weights(resumed)[name])


def test_what_a_donor_cannot_give_is_told_before_anything_is_spent(corpus: Path, donor: RunFolder, tmp_path: Path) -> None:
    def told(*runs: RunConfig) -> str:
        with pytest.raises(InputError) as caught:
            check_donors(runs)
        return str(caught.value)

    check_donors([started(corpus, donor.path), toy(corpus)])
    missing = started(corpus, tmp_path / "0123456789abcdef")
    assert "is the folder of no run that has ended" in told(missing)
    assert told(missing, missing).count("\n") == 0, "each once"
    wide = toy(corpus, width=32, start=str(donor.path))
    assert "has width 16 and not 32; a run begins with the weights of one that differs from it in depth alone" in told(wide)
    assert "has 4 of the 5 layers that L5-H16-A2-F32 begins with" in told(started(corpus, donor.path, depth=5))
    assert "gives L4-H16-A2-F32 the same layers by :last as by :first" in told(started(corpus, f"{donor.path}:last", depth=4))
    renamed = tmp_path / ("e" * 16)
    renamed.symlink_to(donor.path)
    assert f"holds run {donor.run_id}; a run's folder has its id for a name" in told(started(corpus, renamed))
    lost = RunFolder(tmp_path / donor.run_id)
    lost.path.mkdir()
    record = donor.record()
    assert record is not None
    lost.file_record(record)
    assert "has no weights.safetensors" in told(started(corpus, lost.path))
    failed = RunFolder(tmp_path / ("f" * 16))
    failed.path.mkdir()
    failed.file_record(RunRecord.parse(record.model_dump() | {"state": "DIVERGED", "run_id": "f" * 16}))
    assert "did not complete (DIVERGED)" in told(started(corpus, failed.path))


def test_a_donor_of_another_tokeniser_is_refused(donor: RunFolder, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other.txt")
    record = trained(tmp_path, started(other, donor.path)).record()
    assert record is not None
    assert record.state == "FAILED"
    assert "was trained on other text, with pieces of its own" in str(record.reason)


def test_a_sweep_tells_whether_cut_layers_beat_fresh_ones(donor: RunFolder, corpus: Path, tmp_path: Path, study: Any) -> None:
    sweep = {
        "name": "toy",
        "question": "May I cut layers off?",
        "data": toy(corpus).data.model_dump(mode="json", exclude_none=True),
        "base": {"recipe": RECIPE | {"precision": "fp32"}},
        "shapes": {"grid": {"depth": [2], "width": [16], "heads": [2], "ffn": [32]}},
        "budgets": {"steps": [150]},
        "vary": {"recipe.start": ["fresh", str(donor.path), f"{donor.path}:last"]},
        "seeds": 2,
    }
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(sweep, sort_keys=False))
    refused = study("plan", file, "vary.recipe.start=[fresh, old]")
    assert refused[2].startswith("error: vary.recipe.start: 'old' is neither fresh nor the folder of a run")
    assert f"recipe.start {donor.path}: has 4 of the 5 layers" in study("plan", file, "shapes.grid.depth=[5]")[2]
    assert f"start={donor.run_id}:last" in study("plan", file)[1]
    gone = study("plan", file, f"vary.recipe.start=[runs/{'0' * 16}]")
    assert (gone[0], "is the folder of no run that has ended" in gone[2]) == (2, True)
    Place(tmp_path).study("launch", file, "--no-wandb", "--device", "cpu")
    told = json.loads(study("report", tmp_path / "results/toy", "--include-unbracketed", "--json")[1])
    pairs = told["comparisons"]["pairs"]
    first, last = f"start={donor.run_id}:first", f"start={donor.run_id}:last"
    assert [(pair["first"], pair["second"]) for pair in pairs] == [(first, "start=fresh"), (last, "start=fresh"), (last, first)]
    assert pairs[0]["difference"]["estimate_nats"] < -0.1
    (line,) = (line for line in told["findings"]["undecided"] if line.startswith("What another donor would do"))
    assert f"4 runs began with weights of {donor.run_id}, whose luck" in line
    away = donor.path.rename(tmp_path / "away")
    try:
        assert study("plan", file, "--results", tmp_path / "results")[0] == 0, "what is trained asks for no donor"
    finally:
        away.rename(donor.path)
