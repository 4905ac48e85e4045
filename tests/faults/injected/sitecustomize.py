"""Faults for the runs of a launch, by their seed: Python imports this file by itself where its folder is on PYTHONPATH.

STUDY_TEST_FAULTS maps a seed to what befalls its run, {"3": {"fault": "nan", "step": 5}}.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from typing import Any

FAULTS: dict[str, dict[str, Any]] = json.loads(os.environ.get("STUDY_TEST_FAULTS", "{}"))


class Injection:
    """Changes the module of the LightningModule once it is loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != "study.model.lightning":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            inject(module.MaskedLanguageModelling)

        spec.loader.exec_module = exec_module
        return spec


def inject(module: Any) -> None:
    step_of_training = module.training_step

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = step_of_training(self, batch, batch_idx)
        fault = FAULTS.get(str(self.config.seed), {})
        return befall(fault["fault"], loss) if fault.get("step") == self.trainer.global_step else loss

    module.training_step = training_step


def befall(fault: str, loss: Any) -> Any:
    if fault in ("nan", "inf"):
        return loss * float(fault)
    if fault == "memory":
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if fault == "hang":
        read_forever()
    if fault == "full":
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    return loss


def read_forever() -> None:
    while True:
        time.sleep(3600)


if FAULTS:
    sys.meta_path.insert(0, Injection())
