"""Models side by side, single changes ranked, and the accounts of `study params`, as values and on the command line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.base.schema import deep_merge
from study.cli import commands
from study.config.run_config import RunConfig
from study.counting.architecture import ALWAYS_WRITTEN, Architecture, unbuildable
from study.counting.latency import TERMS, LatencyModel
from study.counting.memory import memory_of
from study.counting.named_models import catalogue, find, named
from study.counting.parameters import parameters
from study.model.masked_language_model import MaskedLanguageModel
from study.shapes.accounts import Conditions, NamedArchitecture, account, explanations, resolve_architecture
from study.shapes.comparing import (
    Change,
    Measure,
    measures,
    models_as_text,
    parse_changes,
    rank_changes,
    tabulate_models,
    with_berts_ffn,
)
from tests.small import config, config_values

BASE = NamedArchitecture("bert-base", named("bert-base"))
ISSUE = ("depth=24", "width=1024", "ffn=6144", "heads=24", "vocabulary=60000")
subjects = st.sampled_from([NamedArchitecture(model.short_name, model.architecture) for model in catalogue()])


MEASURES = measures(Conditions(128, 32, "fp32"))


def ranking(
    base: NamedArchitecture, texts: Sequence[str], measured: Mapping[str, Measure], by: str = "parameters"
) -> list[Change]:
    return rank_changes(base.architecture, parse_changes(base.architecture, texts), measured, by)


@pytest.mark.parametrize("objective", ["mlm", "mlm_nsp", "rtd"])
def test_what_an_objective_adds_is_counted_and_stays_when_a_size_changes(objective: str, tmp_path: Path) -> None:
    """The pair head of mlm_nsp and rtd's generator and detector, in counts, changes and explanations, as models have them."""
    values = config_values(Path("docstrings"), recipe={"objective": objective})
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(values))
    base = resolve_architecture(str(file), tmp_path)
    assert base.architecture == RunConfig.parse(values).architecture
    printed = CliRunner().invoke(commands, ["params", str(file), "--json"])
    assert json.loads(printed.output)["parameters"]["mlm_tied"] == parameters(base.architecture).parameters_mlm_tied
    (deeper,) = ranking(base, ["depth=5"], measures(Conditions(16, 4, "fp32")))
    assert deeper.architecture == RunConfig.parse(deep_merge(values, {"architecture": {"depth": 5}})).architecture
    explained = {reason.name: reason.figure for reason in explanations(base.architecture)}
    of_words = {
        reason.name: reason.figure for reason in explanations(RunConfig.parse(config_values(Path("docstrings"))).architecture)
    }
    assert explained == of_words, "what others count has the MLM head alone"
    with pytest.raises(InputError, match=r"follows recipe\.objective"):
        parse_changes(base.architecture, ["pair_head=true"])


@pytest.mark.parametrize(
    "texts", [("depth=24", "depth=24"), ("depth=24,width=1024", "width=1_024,depth=24"), ("width=1024", "width=1024,heads=16")]
)
def test_a_change_that_is_given_twice_is_refused(texts: tuple[str, str]) -> None:
    first, again = texts
    with pytest.raises(InputError) as refused:
        parse_changes(BASE.architecture, ["depth=6", first, "ffn=6144", again])
    assert str(refused.value) == f"--change {again}: repeats --change {first}; give each change once"


def test_twice_the_depth_adds_most_to_bert_base() -> None:
    ranked = ranking(BASE, ISSUE, MEASURES)
    added = {change.label: change.effects["parameters"].added for change in ranked}
    assert added == {
        "depth 12 → 24": 85_054_464,
        "ffn 3,072 → 6,144": 56_659_968,
        "width 768 → 1,024": 49_327_360,
        "vocabulary 30,522 → 60,000": 22_668_582,
        "heads 12 → 24": 0,
    }
    assert ranked[2].note == "heads 12 → 16, to divide it"
    assert ranked[2].architecture.ffn == 3072
    by_flops = ranking(BASE, ["vocabulary=90000", "ffn=3300"], MEASURES, by="train_flops")
    assert [change.label for change in by_flops] == ["vocabulary 30,522 → 90,000", "ffn 3,072 → 3,300"]


@given(subjects, st.integers(2, 40))
def test_an_elasticity_is_that_of_the_whole_step(base: NamedArchitecture, times: int) -> None:
    (change,) = ranking(base, [f"depth={base.architecture.depth * times}"], measures(Conditions(64, 8, "fp32")))
    for effect in change.effects.values():
        assert effect.elasticity is not None
        assert effect.before * times**effect.elasticity == pytest.approx(effect.after)
        assert 0 <= effect.elasticity <= 1 + 1e-9
    assert parameters(change.architecture).parameters == change.effects["parameters"].after


@given(subjects, st.integers(1, 40))
def test_a_wider_model_keeps_its_heads_where_they_divide(base: NamedArchitecture, more: int) -> None:
    width = base.architecture.width + 64 * more
    (change,) = ranking(base, [f"width={width}"], measures(Conditions(64, 8, "fp32")))
    kept = width % base.architecture.heads == 0
    assert (change.architecture.heads == base.architecture.heads) or not kept
    assert width % change.architecture.heads == 0
    assert bool(change.note) == (not kept)


def test_several_sizes_and_other_fields_change_without_an_elasticity() -> None:
    ranked = ranking(BASE, ["width=1024,ffn=4096", "norm=pre", "activation=geglu", "embedding_width=128"], MEASURES)
    assert all(change.effects["parameters"].elasticity is None for change in ranked)
    added = {change.label: change.effects["parameters"].added for change in ranked}
    assert added["norm post → pre"] == 0
    assert added["activation gelu → geglu"] == 12 * (768 * 3072 + 3072)
    assert added["embedding_width None → 128"] < 0


@pytest.mark.parametrize(("changes", "kept"), [(("width=1152",), True), (("width=1152", "width=1152,ffn=4608"), True)])
def test_whether_depth_or_width_adds_more_turns_on_the_ffn_that_grows_with_it(changes: tuple[str, ...], kept: bool) -> None:
    """Twice BERT-Base's depth adds more than 1.5 times its width with the ffn kept, and less with one of 4·H."""
    steps = with_berts_ffn(BASE.architecture, parse_changes(BASE.architecture, ["depth=24", *changes]))
    ranked = rank_changes(BASE.architecture, steps, MEASURES)
    assert [(change.architecture.depth, change.architecture.width, change.architecture.ffn) for change in ranked] == [
        (12, 1152, 4608),
        (24, 768, 3072),
        (12, 1152, 3072),
    ]
    assert bool(ranked[2].effects["parameters"].elasticity) is kept


@pytest.mark.parametrize("change", ["width=1024,ffn=2048", "ffn=4096", "depth=24"])
def test_no_row_is_added_where_the_ffn_is_given_or_the_width_stays(change: str) -> None:
    assert len(with_berts_ffn(BASE.architecture, parse_changes(BASE.architecture, [change]))) == 1
    esm = named("esm2-8m").model_copy(update={"ffn": 1000})
    assert len(with_berts_ffn(esm, parse_changes(esm, ["width=640"]))) == 1


def test_a_shape_of_a_named_model_is_reported() -> None:
    other, *_ = explanations(named("bert-base"), of_name=False)
    assert (other.name, other.figure) == ("named model", "bert-base")
    other, *_ = explanations(named("bert-base").model_copy(update={"vocabulary": 8192}), of_name=False)
    assert (other.name, other.figure) == ("named model of this shape", "bert-base")
    assert other.reason == "its depth, width, heads and ffn, but vocabulary 30522 there"
    names = [one.name for one in explanations(named("bert-base").model_copy(update={"depth": 13}), of_name=False)]
    assert not any("named" in name for name in names)


def test_counts_are_written_as_in_sweep_files() -> None:
    for written in ("ffn=4e3", "ffn=4K", "ffn=4,000"):
        (change,) = ranking(BASE, [written], MEASURES)
        assert change.label == "ffn 3,072 → 4,000"
    (change,) = ranking(BASE, ["width=1,024, ffn=4,096"], MEASURES)
    assert change.label == "width 768 → 1,024, ffn 3,072 → 4,096"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("dept=24", "--change dept=24: 'dept' is not a field; did you mean 'depth'"),
        ("depth", "is not field=value, such as depth=24"),
        ("depth=12", "does not change the model"),
        ("heads=7", "--change.heads: 7 heads do not divide width 768; 6 would"),
        ("width=0", "width: 0 is below the least allowed, 1"),
        ("depth=many", "depth: 'many' is not a whole number"),
        ("depth=24,depth=36", "--change depth=24,depth=36: names depth twice; give each value its own --change"),
    ],
)
def test_a_change_that_cannot_be_is_reported_with_its_remedy(text: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        ranking(BASE, [text, "depth=24"], MEASURES)
    assert problem in str(error.value)
    assert len(error.value.problems) == 1


def test_memory_and_latency_rank_where_they_are_known() -> None:
    coefficients = dict.fromkeys(TERMS, 0.0) | {"layer": 1e-3}
    timed = LatencyModel("median", "fp32", 1, "all", coefficients, 5, 5, {}, 0.0, 0.0)
    ranked = ranking(BASE, ["depth=24", "ffn=6144"], measures(Conditions(128, 32, "fp32"), timed), by="memory_bytes")
    assert [change.label for change in ranked] == ["depth 12 → 24", "ffn 3,072 → 6,144"]
    assert ranked[0].effects["latency_seconds"].added == pytest.approx(0.012)
    assert ranked[1].effects["latency_seconds"].elasticity == 0
    assert ranked[0].effects["memory_bytes"].before == memory_of(BASE.architecture, 32, 128, "fp32")["training"].total
    with pytest.raises(InputError, match="memory_bytes is not known for these models"):
        ranking(BASE, ["contact_head=true"], MEASURES, by="memory_bytes")
    with pytest.raises(InputError, match="latency_seconds is not known for these models"):
        ranking(BASE, ["activation=geglu"], measures(Conditions(128, 32, "fp32"), timed), by="latency_seconds")


def test_models_side_by_side_show_what_one_has_and_the_other_lacks() -> None:
    both = [BASE, NamedArchitecture("albert-base", named("albert-base"))]
    rows = {row.name: row.values for row in tabulate_models(both, 128)}
    assert rows["mlm_tied"] == (109_514_298, 11_221_680)
    assert rows["embedding projection"] == (None, 99_072)
    text = models_as_text(both, tabulate_models(both, 128), 128)
    assert "second ÷ first" in text
    assert "–" in text


def test_explanations_give_the_figures_that_others_print() -> None:
    base = {other.name: other.figure for other in explanations(named("bert-base"), ("110M", "recalled"))}
    assert base == {
        "published": "110M",
        "sum as in a lecture": 107_433_216,
        "estimate as in a tutorial": 136_298_298,
        "matrices of the blocks alone, L·12·H²": 84_934_656,
        "MLM head": 622_650,
        "MLM head with its decoder": 24_063_546,
        "encoder with pooler": 109_482_240,
        "pre-training, MLM + NSP": 110_106_428,
        "decoder not tied": 132_955_194,
        "output bias counted twice": 109_544_820,
        "decoder not tied, bias twice": 132_985_716,
    }
    large = {other.name: other.figure for other in explanations(named("bert-large"), ("340M", "recalled"))}
    assert large["estimate as in a tutorial"] == 276_141_882
    assert large["pre-training, MLM + NSP"] == 336_226_108
    assert {other.name for other in explanations(named("albert-base"))} >= {"layers not shared"}


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.short_name)
def test_every_named_model_has_an_account_that_adds_up(model: Any) -> None:
    architecture = model.architecture
    others = explanations(architecture, (model.published, model.published_status))
    counted = account(architecture, Conditions(min(128, architecture.positions), 32, "fp32"), model.short_name, others)
    plain: dict[str, Any] = json.loads(json.dumps(counted.to_dict()))
    assert ("memory" in plain) == (unbuildable(architecture) is None)
    assert sum(plain["components"].values()) == parameters(architecture).parameters
    assert plain["components"].keys() == plain["formulas"].keys()
    assert "100%" in counted.to_text()


def test_params_of_a_file_a_run_folder_and_a_run_id(study: Any, tmp_path: Path) -> None:
    run = tmp_path / "results" / "sweep" / "runs" / "0123456789abcdef"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(config(tmp_path / "corpus.txt").to_yaml())
    alone = tmp_path / "albert.yaml"
    alone.write_text("{depth: 2, width: 32, heads: 2, ffn: 64, vocabulary: 100, embedding_width: 8, layer_groups: 1}")
    for name in (run / "config.yaml", run, run.name, run.name[:6]):
        status, out, _ = study("params", name, "--sequence-length", 16, "--results", tmp_path / "results", "--json")
        assert status == 0
        assert json.loads(out)["shape"] == "L2-H16-A2-F32"
    status, out, _ = study("params", alone)
    assert status == 0
    assert "embedding projection" in out
    assert resolve_architecture(str(alone), tmp_path).architecture.layer_groups == 1


def test_a_run_that_two_sweeps_share_is_one_run(tmp_path: Path) -> None:
    for sweep, name in (("a", "0f3c9d"), ("b", "0f3c9d"), ("b", "0f3cff")):
        folder = tmp_path / sweep / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(config(tmp_path / "corpus.txt").to_yaml())
    assert resolve_architecture("0f3c9d", tmp_path).architecture.depth == 2
    with pytest.raises(InputError, match="matches 2 runs in"):
        resolve_architecture("0f3c", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("params", "bert-bse"),
            "error: bert-bse: is not a known model, a file or a run in",
        ),
        (
            ("compare", "bert-base", "albert"),
            "error: albert: is not a known model, a file or a run in results; did you mean 'albert-",
        ),
        (("compare", "bert-base", "bert-large", "--change", "depth=2"), "error: --change: needs one NAME to change, not 2"),
        (("compare", "bert-base", "--change", "depht=2"), "did you mean 'depth'"),
        (("compare", "bert-base", "--change", "depth=abc"), "error: --change.depth: 'abc' is not a whole number"),
        (
            ("compare", "bert-base", "--sequence-length", 513),
            "error: --sequence-length: 513 is not between 1 and positions 512",
        ),
        (("params", "albert-base", "--width", 64), "error: albert-base.heads: 12 heads do not divide width 64; 8 would"),
        (("compare",), "Missing argument 'NAME...'"),
        (("compare", "bert-base", "bert-large", "--by", "memory_bytes"), "error: --by: ranks changes; give --change"),
        (("compare", "bert-base", "--change", "depth=2", "--by", "latency_seconds"), "latency_seconds needs a --latency-table"),
    ],
)
def test_bad_input_has_one_message_and_status_2(study: Any, arguments: tuple[object, ...], message: str) -> None:
    status, out, err = study(*arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_compare_as_json_and_text(study: Any) -> None:
    changes = [word for change in ISSUE for word in ("--change", change)]
    _, out, _ = study("compare", "bert-base", *changes, "--json")
    ranked = json.loads(out)
    assert ranked["changes"][0]["change"] == "depth 12 → 24"
    assert ranked["changes"][0]["parameters"]["elasticity"] == pytest.approx(math.log(194_568_762 / 109_514_298, 2))
    _, out, _ = study("compare", "bert-base", *changes)
    assert {"most parameters: depth 12 → 24", "most train_flops a token: depth 12 → 24"} <= {*out.splitlines()}
    assert max(map(len, out.partition("ranked by")[0].splitlines())) <= 100, "a measure stands below the other"
    _, out, _ = study("compare", "bert-base", "--change", "positions=64", "--json")
    shorter = measures(Conditions(64, 32, "fp32"))["train_flops"](BASE.architecture)
    assert json.loads(out)["before"]["train_flops"] == shorter  # no longer than the changed model reads
    _, out, _ = study("compare", "bert-base", "bert-large", "esm2-8m", "--json")
    assert [model["parameters"]["mlm_tied"] for model in json.loads(out)["models"]] == [109_514_298, 335_174_458, 7_512_474]


@pytest.mark.parametrize(
    "command", [["params", "modernbert-base", "--explain"], ["compare", "bert-base", "--change", "depth=2"]]
)
def test_counting_is_quick_because_nothing_heavy_is_imported(command: list[str]) -> None:
    code = "import sys; from study.cli import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "numpy", "pandas", "matplotlib", "rich", "transformers", "pytorch_lightning"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"contact_head": True}, "contact_head True can be counted but not trained"),
        ({"bottleneck_width": 8, "norm": "pre"}, "bottleneck_width 8 stands in MobileBERT's blocks, which have no norm pre"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_spent(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    architecture = Architecture.parse(config_values(tmp_path)["architecture"] | changes)
    assert parameters(architecture).parameters > 0
    with pytest.raises(InputError, match=f"architecture.{field}"):
        RunConfig.parse(config_values(tmp_path, architecture=changes))
    with pytest.raises(InputError, match=f"architecture: {field}"):
        MaskedLanguageModel(architecture)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": {"objective": "rtd"}}, "bottleneck_width 8 has no generator, whose width would be another"),
        ({"recipe": {"parametrization": "completep"}}, "completep has no rule for architecture.bottleneck_width 8"),
    ],
)
def test_a_bottleneck_is_refused_beside_what_has_no_rule_for_it(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunConfig.parse(config_values(tmp_path, architecture={"bottleneck_width": 8}, **changes))


def test_every_named_model_can_be_built() -> None:
    left_out = [model.short_name for model in catalogue() if unbuildable(model.architecture) is not None]
    assert all(name.startswith("esm2") for name in left_out)


def test_defaults_of_new_fields_rename_no_run(tmp_path: Path) -> None:
    plain = config(tmp_path)
    same = {"embedding_width": 16, "layer_groups": 2, "embedding_norm": True}
    unused = {"pooler": False, "second_output_bias": False}
    written = config(tmp_path, architecture=same | unused)
    assert written.fingerprint("data") == plain.fingerprint("data")


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("bert-base", {"layer_groups": 13}, "13 groups of layers exceed depth 12"),
        ("bert-base", {"norm_kind": "rms"}, "norm_bias: True does not go with norm_kind rms"),
        ("bert-base", {"position_encoding": "disentangled", "relative_positions": 7}, "7 is odd"),
        ("bert-base", {"relative_positions": 512}, "512 relative positions do not go with position_encoding learned"),
        ("bert-base", {"bottleneck_width": 100}, "100 is not divisible by heads 12; 96 would be"),
        ("bert-base", {"embedding_norm": False}, "False does not go with norm post"),
        ("bert-base", {"global_attention_every": 3}, "3 needs an attention_window"),
        ("albert-base", {"mlm_transform": "none"}, "leaves width 768 to a decoder of embedding_width 128"),
        ("electra-large-generator", {"mlm_transform": "width"}, "needs an embedding_width of at most width 256, not 1024"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_reported_with_both_values(
    name: str, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as error:
        Architecture.parse(named(name).model_dump() | changes)
    assert problem in str(error.value)


def test_fields_of_other_families_leave_configurations_as_they_were(tmp_path: Path) -> None:
    written = config(tmp_path).to_dict()["architecture"]
    assert written.keys() == {*ALWAYS_WRITTEN}
    unpooled = config(tmp_path, architecture={"pooler": False})
    assert RunConfig.parse(unpooled.to_dict()) == unpooled


def test_finding_a_model_gives_its_row() -> None:
    model = find("DEBERTA-V3-BASE")
    assert model is not None
    assert (model.published, model.short_name) == ("86M backbone+98M emb (184M)", "deberta-v3-base")
