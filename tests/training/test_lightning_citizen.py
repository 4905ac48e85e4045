"""The LightningModule under anybody's Trainer: metrics for callbacks, checkpoints that load, loggers that see every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.data.batches import PackedBatches
from study.model.lightning import MaskedLanguageModelling
from study.training.execution import Execution
from tests.small import config, losses, trained, write_corpus

METRICS = {"train/loss", "train/gradient_norm", "recipe/learning_rate", "perf/tokens_per_second"}
VALIDATION = {"val/loss", "val/accuracy", "val/order_gain", "val/loss_standard_error", "val/order_gain_standard_error"}


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    write_corpus(tmp_path / "text.txt")
    return config(tmp_path / "text.txt")


def trainer_in(folder: Path, steps: int, *callbacks: pl.Callback, logger: Any = False) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        val_check_interval=10,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=list(callbacks),
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def test_a_checkpoint_is_chosen_by_validation_loss_and_loads_alone(run: RunConfig, tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path / "best", monitor="val/loss")
    module = MaskedLanguageModelling(run, log_every_steps=5)
    trainer = trainer_in(tmp_path, run.steps, best)
    trainer.fit(module, PackedBatches(run))
    assert trainer.callback_metrics.keys() >= METRICS | VALIDATION
    assert module.validation is not None
    assert best.best_model_score == pytest.approx(module.validation.loss, rel=1e-6)
    again = MaskedLanguageModelling.load_from_checkpoint(best.best_model_path)
    assert again.config == run
    validating = trainer_in(tmp_path, 1)
    validating.validate(again, PackedBatches(run), verbose=False)
    assert validating.callback_metrics["val/loss"] == pytest.approx(float(best.best_model_score), rel=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_it_trains_bit_for_bit_what_a_launch_of_as_many_threads_trains(run: RunConfig, tmp_path: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    module = MaskedLanguageModelling(run, log_every_steps=1)
    trainer_in(tmp_path, run.steps, logger=(logger := CSVLogger(tmp_path))).fit(module, PackedBatches(run))
    launched = trained(tmp_path, run, **vars(Execution(kernels="eager", threads=threads)))
    rows = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
    assert rows["train/loss"].dropna().tolist() == losses(launched)


def test_early_stopping_ends_the_training(run: RunConfig, tmp_path: Path) -> None:
    stopping = EarlyStopping("val/loss", min_delta=100.0, patience=1)
    trainer = trainer_in(tmp_path, run.steps, stopping)
    trainer.fit(MaskedLanguageModelling(run), PackedBatches(run))
    assert trainer.global_step == 20


def test_a_pruning_callback_of_optuna_stops_a_trial(run: RunConfig, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")  # the callback derives from a class of that package
    integration = pytest.importorskip("optuna_integration.pytorch_lightning")
    import optuna

    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))

    def objective(trial: optuna.Trial) -> float:
        pruning = integration.PyTorchLightningPruningCallback(trial, monitor="val/loss")
        trainer_in(tmp_path, run.steps, pruning).fit(MaskedLanguageModelling(run), PackedBatches(run))
        return 0.0

    study.optimize(objective, n_trials=1)
    assert study.trials[0].state == optuna.trial.TrialState.PRUNED


@pytest.mark.slow
def test_wandbs_logger_receives_the_rows_and_the_configuration(run: RunConfig, tmp_path: Path) -> None:
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="test")
    seen: list[dict[str, float]] = []
    log = logger.experiment.log

    def watched(row: dict[str, float], *rest: Any, **more: Any) -> None:
        seen.append(dict(row))
        log(row, *rest, **more)

    logger.experiment.log = watched
    try:
        trainer_in(tmp_path, run.steps, logger=logger).fit(MaskedLanguageModelling(run, log_every_steps=10), PackedBatches(run))
        assert logger.experiment.config["config"]["architecture"]["depth"] == 2
    finally:
        logger.experiment.finish()
    assert [row["trainer/step"] for row in seen if "train/loss" in row] == [10, 20, 30]
    assert any(row.keys() >= VALIDATION for row in seen)


def test_a_recipe_that_needs_a_trained_run_is_refused(run: RunConfig, tmp_path: Path) -> None:
    recipe = run.recipe.model_copy(update={"start": "results/mine/runs/0123456789abcdef"})
    module = MaskedLanguageModelling(run.model_copy(update={"recipe": recipe}))
    with pytest.raises(InputError, match=r"recipe\.start: names a trained run"):
        trainer_in(tmp_path, 1).fit(module, PackedBatches(run))


def test_the_weights_of_a_checkpoint_are_those_that_were_trained(run: RunConfig, tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, 10)
    module = MaskedLanguageModelling(run)
    trainer.fit(module, PackedBatches(run))
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    again = MaskedLanguageModelling.load_from_checkpoint(tmp_path / "end.ckpt")
    for name, weight in module.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
