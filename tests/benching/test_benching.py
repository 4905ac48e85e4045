"""The benchmark: what it measures side by side, the rows it makes of the times, and what it keeps."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import groupby
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from study.base.errors import InputError
from study.benching import gpu_sharing as sharing
from study.benching import overheads, own_processes
from study.benching import training_comparison as training
from study.benching.cases import Case, cases_of_models, cases_of_shapes, read_shapes
from study.benching.command import BenchOptions
from study.benching.contenders import kernel_kind, seconds_by_kind, shares_of
from study.benching.overheads import checkpoint_seconds
from study.benching.own_processes import Contender, ContenderError, Gate, Order, RoundTime
from study.benching.results import Results, Row, as_line, as_markdown, as_text, failure, measurement, read_sections
from study.benching.training_comparison import Rounds, TrainingComparison, median_interval, training_row
from study.counting.architecture import Architecture
from study.counting.memory import TrainingStep, training_memory
from study.counting.named_models import named
from study.counting.parameters import flops_per_token, spared_flops_per_token
from study.executing.slots import MPS_PORTION, Slot, rank_environments
from study.plotting.speed import draw_files, draw_speed, speed_frame

TINY = Architecture(depth=1, width=32, heads=1, ffn=128, vocabulary=200, positions=512)
CASE = Case(TINY, "fp32", batch=4, sequence_length=16)
COMMITTED = sorted((Path(__file__).parents[2] / "results" / "bench").glob("*-*.json"))
KEYS = {"shape", "vocabulary", "dtype", "ours_tokens_per_second", "versus", "share_of_matmul_rate"}


def known_rounds(slow: float = 1.0) -> Rounds:
    """Three rounds of a machine that halves its speed in the last: ours 2 ms a step, loop 5, trainer 6 on 1 GFLOP/s."""
    times = {"ours": 2e-3, "loop": 5e-3, "trainer": 6e-3}
    drift = (1.0, 1.0, 2.0 * slow)
    return Rounds(
        times={name: [RoundTime(10, 10 * seconds * factor) for factor in drift] for name, seconds in times.items()},
        matmul=[{(8, 8, 8): 1e9 / factor, (4, 4, 4): 5e8 / factor} for factor in drift],
        starts={"ours": 1.5},
    )


def test_ratios_are_taken_within_a_round_and_so_survive_a_machine_that_drifts() -> None:
    for slow in (1.0, 10.0):
        row = training_row(CASE, known_rounds(slow), peak=2e9)
        assert row["versus"] == pytest.approx({"loop": 2.5, "trainer": 3.0})
        assert row["ours_tokens_per_second"] == pytest.approx(64 / 2e-3)
        flops = flops_per_token(TINY, 16, 2)["train_flops"] - spared_flops_per_token(TINY, 16, 2)
        assert row["share_of_matmul_rate"] == pytest.approx(32_000 * flops / 1e9)
        assert row["mfu"] == pytest.approx(32_000 * flops / 2e9)


@pytest.mark.parametrize(
    ("rounds", "least"), [(5, 0.92), *(pytest.param(rounds, 0.95, marks=pytest.mark.slow) for rounds in (6, 15, 40))]
)
def test_the_interval_of_a_ratio_covers_the_true_median(rounds: int, least: float) -> None:
    draws = np.random.default_rng(rounds).lognormal(mean=0.0, sigma=0.3, size=(4_000, rounds))
    intervals = np.array([median_interval(values.tolist()) for values in draws])
    covered = np.mean((intervals[:, 0] <= 1.0) & (intervals[:, 1] >= 1.0))
    assert least - 0.01 < covered < 0.985


def test_the_interval_of_a_ratio_stands_beside_it() -> None:
    rounds = known_rounds()
    rounds.times["loop"] = [RoundTime(10, 10 * seconds) for seconds in (4e-3, 5e-3, 12e-3)]
    row = training_row(CASE, rounds, None)
    assert row["versus_interval"] == {"loop": pytest.approx([2.0, 3.0]), "trainer": pytest.approx([3.0, 3.0])}
    assert "2.50 (2.00–3.00)" in as_text("train", [row])
    del row["versus_interval"]
    assert "2.50 " in as_text("train", [row]), "results of before have none"


def test_a_row_has_what_other_programs_read() -> None:
    row = training_row(CASE, known_rounds(), None)
    assert row.keys() >= KEYS
    assert (row["shape"], row["vocabulary"], row["dtype"], row["mfu"]) == ("1x32", 200, "fp32", None)
    assert json.loads(json.dumps(row)) == row


def test_a_contender_that_failed_is_reported_and_the_others_stay() -> None:
    rounds = known_rounds()
    del rounds.times["trainer"]
    rounds.errors["trainer"] = "ImportError: no transformers"
    row = training_row(CASE, rounds, None)
    assert row["versus"].keys() == {"loop"}
    assert "trainer failed: ImportError: no transformers" in as_text("train", [row])
    rounds.times.clear()
    row = training_row(CASE, rounds, None)
    assert row["ours_tokens_per_second"] is None
    assert "failed" in as_line("train", row)


@pytest.mark.parametrize("text", ["2by128", "", "0x128", "2x128,x"])
def test_shapes_that_are_none_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="2x128,4x256"):
        read_shapes(text)


def test_shapes_are_crossed_with_vocabularies_and_precisions() -> None:
    cases = cases_of_shapes(read_shapes("2x128, 4x256"), (30522, 8192), ("fp32", "bf16"), (32, 128), threads=2)
    assert len(cases) == 8
    assert {case.shape for case in cases} == {"2x128", "4x256"}
    assert cases[0].config().batch_sequences == 32


def test_the_cases_of_a_gpu_are_the_miniatures_base_and_large() -> None:
    cases = cases_of_models(threads=1, dropout=0.0)
    assert list(dict.fromkeys(case.model for case in cases)) == [
        *("bert-large", "bert-base", "bert-medium", "bert-small", "bert-mini", "bert-tiny")
    ]
    large = [case.sequence_length for case in cases if case.model in ("bert-large", "bert-base")]
    assert large == [128, 512, 128, 512, 128, 512]
    assert all(case.config().architecture == case.architecture for case in cases)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA device"):
        BenchOptions(device="cuda").cases()


def test_options_of_shapes_are_refused_where_a_gpu_brings_its_own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="--batch, --sequence-length: needs --shapes"):
        BenchOptions(device="cuda", batch=8, sequence_length=64).cases()
    (case,) = BenchOptions(device="cuda", batch=8, sequence_length=64, shapes="2x128", vocabularies=(1000,)).cases()
    assert (case.batch, case.sequence_length, case.dtype) == (8, 64, "bf16")


def test_a_section_measured_again_replaces_itself_alone(tmp_path: Path) -> None:
    row = training_row(CASE, known_rounds(), None)
    results = Results(tmp_path, "cpu", threads=2)
    results.put("train", [row])
    again = Results(tmp_path, "cpu", threads=1)
    again.put("start", [measurement("study --help", 0.07, "s", at_most=0.3), failure("study params", "it crashed")])
    sections = read_sections(again.file)
    assert sections["train"]["rows"] == [row]
    assert (sections["train"]["environment"]["threads"], sections["start"]["environment"]["threads"]) == (2, 1)
    assert sections["train"]["environment"]["versions"]["torch"]
    text = again.file.with_suffix(".md").read_text()
    assert "| 1x32 | 200 | fp32 | 4 x 16 | 32k | 2.50 (2.50–2.50) | 3.00 (3.00–3.00) |" in text
    assert "| study --help | 70 ms | ≤ 300 ms | yes |" in text
    assert "| study params | it crashed | – | – |" in text
    again.file.write_text("{}")
    with pytest.raises(InputError, match="move it away"):
        read_sections(again.file)


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: file.stem)
def test_the_committed_tables_are_those_of_their_rows(file: Path) -> None:
    assert file.with_suffix(".md").read_text() == as_markdown(file.stem, read_sections(file))


def test_the_figure_has_a_bar_for_every_ratio_and_share(tmp_path: Path) -> None:
    results = Results(tmp_path, "cpu", threads=2)
    results.put("train", [training_row(CASE, known_rounds(), 2e9), training_row(CASE, Rounds(errors={"ours": "no"}), None)])
    data = speed_frame(read_sections(results.file)["train"]["rows"])
    assert data.groupby("kind", sort=False).size().to_dict() == {"times faster": 2, "share": 2}
    written = draw_files(results.file)
    assert [path.name for path in written] == [f"{results.file.stem}.svg"]
    assert written[0].read_text().startswith("<?xml")
    assert as_markdown("here", {}) == "# Speed on here\n"


def test_the_cases_of_the_figure_stand_in_the_order_of_the_rows_and_those_without_peers_say_so() -> None:
    alone = known_rounds()
    alone.times = {"ours": alone.times["ours"]}
    rows = [training_row(replace(CASE, batch=8), alone, 2e9), training_row(CASE, known_rounds(), 2e9)]
    left, _ = draw_speed(speed_frame(rows), "speed").axes
    assert [label.get_text().split(",")[2] for label in left.get_yticklabels()] == [" 8·16", " 4·16"]
    assert [(text.get_text(), text.get_position()[1]) for text in left.texts if text.get_text() == "no peer"] == [
        ("no peer", 0)
    ]


KERNELS = {
    "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT": "products",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel": "products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": "products",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0": "attention",
    "void cudnn::fusion::compute_dot_do_o_specialized<true>": "attention",
    "void cudnn::fusion::convert_dq_to_16bits<__nv_bfloat16, 64>": "attention",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<64, cutlass::bfloat16_t>": "attention",
    "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>": "the optimiser",
    "_attention_gradient_kernel": "attention",
    "_cross_entropy_gradient_kernel": "the loss over the logits",
    "_add_norm_gradient_kernel": "norms, GELU and sums",
    "triton_red_fused__log_softmax__to_copy_nll_loss_forward_2": "the loss over the logits",
    "triton_poi_fused_embedding_dense_backward_1": "the token table",
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>": "the masks",
    "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, long, long>": "the masks",
    "triton_per_fused__to_copy_add_native_layer_norm_0": "norms, GELU and sums",
}
"""Names of kernels as CUDA's libraries, torch and Inductor give them on a GPU of the Hopper generation, and their kinds."""


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_kernels_of_a_gpu_are_distinguished_by_name(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


def test_kernels_are_summed_a_step_and_ranges_around_them_are_none() -> None:
    kernels = [
        ("nvjet_a", 30.0, False),
        ("nvjet_b", 10.0, False),
        ("triton_poi_fused_gelu", 8.0, False),
        ("nvjet_range", 99.0, True),
    ]
    events = [
        SimpleNamespace(
            name=name,
            device_type=SimpleNamespace(name="CUDA"),
            is_user_annotation=named_by_user,
            time_range=SimpleNamespace(elapsed_us=lambda spent=spent: spent),
        )
        for name, spent, named_by_user in kernels
    ]
    on_host = SimpleNamespace(name="aten::mm", device_type=SimpleNamespace(name="CPU"), is_user_annotation=False)
    profile = SimpleNamespace(events=lambda: [*events, on_host])
    seconds = seconds_by_kind(profile, steps=2)
    assert seconds == pytest.approx({"products": 20e-6, "norms, GELU and sums": 4e-6})
    assert shares_of(seconds, 40e-6)["the GPU idle between kernels"] == pytest.approx(0.4)
    assert sum(shares_of(seconds, 16e-6).values()) == pytest.approx(1), "though profiled steps took longer"
    with pytest.raises(ValueError, match="names no matrix product"):
        seconds_by_kind(SimpleNamespace(events=lambda: events[2:]), steps=2)


def test_a_step_that_was_profiled_is_reported_beside_its_row(tmp_path: Path) -> None:
    rounds = known_rounds()
    rounds.profile = {"products": 5e-4, "attention": 1e-4}
    row = training_row(CASE, rounds, None)
    rate = 64 * CASE.product_flops_per_token / 5e-4 / 1e9
    assert CASE.flops_per_token - CASE.product_flops_per_token == 12 * 32 * CASE.predictions
    deep = replace(CASE, architecture=TINY.model_copy(update={"depth": 3}))
    assert deep.flops_per_token - deep.product_flops_per_token == 12 * 32 * (2 * 16 + CASE.predictions)
    sentence = f"products take 25% of a step, at {rate:.0%} of their best rate, the GPU idle between kernels 70%, attention 5%."
    assert row["sentence"] == f"1x32, 4 x 16: {sentence}"
    assert sentence in as_text("train", [row])
    assert "sentence" not in training_row(CASE, known_rounds(), None)


def test_on_a_gpu_what_compiles_starts_at_once_and_other_peers_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Watched:
        def __init__(self, case: Case) -> None:
            self.case = case

        def start(self, name: str) -> None:
            events.append(f"start {name}")

        def warm_up(self, name: str) -> None:
            events.append(f"warm up {name}")

    tiny = cases_of_models(1, 0.0)[-1]
    training.warm_up([Watched(tiny)], together=True)  # type: ignore[list-item]
    built = ["ours", "trainer_compiled", "profiled"]
    others = [f"{what} {name}" for name in ("loop", "trainer", "matmul") for what in ("start", "warm up")]
    assert events == [*(f"start {name}" for name in built), *others, *(f"warm up {name}" for name in built)]


def test_a_batch_too_large_for_peers_is_trained_alone() -> None:
    alone = [case for case in cases_of_models(1, 0.0) if training.contenders_of(case, profiled=True) == ("ours", "matmul")]
    assert [(case.model, case.batch_tokens) for case in alone] == [("bert-large", 65536)] * 2 + [("bert-base", 131072)] * 2
    assert training.peers_of(replace(alone[0], device="cpu")) == ("loop", "trainer")


def test_a_wave_of_models_fits_into_80_gb_with_one_peer() -> None:
    """A peer predicts at every token; beside peers each of ours is there once more for its profile."""
    for _, wave in groupby(cases_of_models(1, 0.0), key=lambda case: case.wave):
        ours = peer = 0
        for case in wave:
            step = TrainingStep(case.batch, case.sequence_length, case.predictions, case.dtype, device="cuda", graphed=True)
            dense = replace(step, predictions=case.sequence_length, graphed=False)
            contenders = training.contenders_of(case, profiled=True)
            started = {"ours", training.PROFILED} & {*contenders}
            ours += training_memory(case.architecture, step).total * len(started)
            if training.peers_of(case):
                peer = max(peer, training_memory(case.architecture, dense).total)
        assert ours + peer < 80e9


def test_a_contender_that_breaks_says_why(tmp_path: Path) -> None:
    place = tmp_path / "log"
    with Contender("study.benching.peers.of_no_kind", (), place) as broken, pytest.raises(ContenderError, match="of_no_kind"):
        broken.ready()
    with Contender("os._exit", (), place) as killed, pytest.raises(ContenderError):
        killed.round(Order(0.1))


@pytest.mark.parametrize(("step_seconds", "lead_in", "counted"), [(0.25, 1, 4), (0.25, 3, 4), (2.5, 1, 1), (2.5, 3, 3)])
def test_first_steps_count_only_where_they_are_as_long_as_a_round(
    monkeypatch: pytest.MonkeyPatch, step_seconds: float, lead_in: int, counted: int
) -> None:
    clock = 0.0
    monkeypatch.setattr(own_processes, "perf_counter", lambda: clock)
    ours, theirs = Pipe()
    contender = Gate(theirs, lambda: None, lambda: None)
    ours.send(Order(1.0, lead_in=lead_in))
    contender.step()
    assert ours.recv() == 0.0
    ours.send(Order(1.0))
    while not ours.poll():
        clock += step_seconds * (2 if clock == 0.0 else 1)
        contender.step()
    cold = step_seconds if counted == lead_in else 0.0
    assert ours.recv() == RoundTime(counted, counted * step_seconds + cold)


@pytest.mark.slow
def test_the_command_measures_all_sides_and_prints_rows(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ROUND_SECONDS", 0.05)
    monkeypatch.setattr(training, "WARM_UP", {"cpu": Order(0.05)})
    size = ("--shapes", "1x32", "--vocabulary", "200", "--dtype", "fp32", "--batch", 4, "--sequence-length", 16)
    status, out, err = study("bench", "--only", "train", *size, "--threads", 1, "--rounds", 2, "--into", tmp_path, "--json")
    assert status == 0, err
    (row,) = json.loads(out)
    assert row.keys() >= KEYS
    assert row["errors"] == {}
    assert row["versus"].keys() == {"loop", "trainer"}
    assert 0 < row["share_of_matmul_rate"] < 1
    assert row["rounds"] == 2
    assert len({path.stem for path in tmp_path.iterdir()}) == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".svg"}


def test_kernels_of_a_gpu_are_refused_where_there_is_none(study: Any, tmp_path: Path) -> None:
    status, out, err = study("bench", "--only", "kernels", "--device", "cpu", "--into", tmp_path / "bench")
    assert (status, out) == (2, "")
    assert "--only kernels: times the kernels of a CUDA GPU" in err
    assert not (tmp_path / "bench").exists()


def test_a_checkpoint_is_timed_as_runs_write_it(tmp_path: Path) -> None:
    assert checkpoint_seconds(TINY, tmp_path) > 0
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_bare_loop_takes_its_turns(tmp_path: Path) -> None:
    with TrainingComparison(CASE, tmp_path / "comparison") as comparison:
        comparison.start("bare")
        comparison.warm_up("bare")
        comparison.measure(1)
    assert comparison.rounds.errors == {}
    assert comparison.rounds.times["bare"][0].steps >= 1


@pytest.mark.slow
def test_runs_that_share_a_device_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "WAYS", (sharing.Way((1, 2)), sharing.Way((2,), mps=True)))
    monkeypatch.setattr(sharing, "MODELS", ("bert-tiny",))
    monkeypatch.setattr(sharing, "BATCHES", ((8, 32),))
    monkeypatch.setattr(sharing, "SECONDS", 0.05)
    rows: list[Row] = []
    sharing.measure_sharing("cpu", rows.append)
    assert [(row["runs"], row["mps"], row["errors"]) for row in rows] == [(1, False, {}), (2, False, {})]
    assert rows[0]["relative"] == 1
    assert rows[1]["relative"] > 0.2
    assert as_line("sharing", {**rows[0], "mps": True, "portion": 12}).startswith(
        "sharing: bert-tiny, batch 8 x 32, runs 1, MPS yes, 12% each, tokens/s "
    )


MPS_CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then echo "started in $(basename "$CUDA_MPS_PIPE_DIRECTORY")"; else cat; fi >> {log}
"""


def test_the_mps_daemon_ends_after_those_who_train_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon waits for its clients when it is told to quit, so they have to be gone."""
    log, program = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    program.write_text(MPS_CONTROL.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sharing, "SECONDS", 0.05)

    class Watched(Contender):
        def stop(self) -> None:
            super().stop()
            with log.open("a") as lines:
                lines.write("a run has ended\n")

    monkeypatch.setattr(sharing, "Contender", Watched)
    case = Case(named("bert-tiny"), "fp32", 8, 32)
    (row,) = sharing._throughputs(case, sharing.Way((1,), mps=True))
    assert row["errors"] == {}
    assert log.read_text().splitlines() == ["started in mps", "a run has ended", "quit -t 5"]


def test_the_crowd_of_a_bench_has_the_portion_of_a_gpu_that_a_launch_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_control", lambda *_: None)
    (launched,) = rank_environments(Slot("cuda", (0,), 1, sharing=16))
    with sharing._service(sharing.Way((16,), mps=True), tmp_path) as variables:
        assert variables[MPS_PORTION] == launched[MPS_PORTION] == "12"


@pytest.mark.slow
def test_a_start_and_a_sweep_of_short_runs_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "STARTED", 2)
    monkeypatch.setattr(overheads, "SWEPT", 2)
    rows = overheads.run_rows(tmp_path)
    assert [row["at_most"] for row in rows] == [None, overheads.START_SECONDS, overheads.RUN_SECONDS]
    assert all(row["value"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("options", "place"),
    [(("--shapes", "2by128"), "--shapes"), (("--dtype", "fp16"), "--dtype"), (("--vocabulary", "many"), "--vocabulary")],
)
def test_bad_options_are_refused_before_anything_is_measured(
    options: tuple[str, ...], place: str, study: Any, tmp_path: Path
) -> None:
    status, out, err = study("bench", *options, "--into", tmp_path / "out")
    assert (status, out) == (2, "")
    assert f"error: {place}: " in err
    assert not (tmp_path / "out").exists()
