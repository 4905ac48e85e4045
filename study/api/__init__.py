"""The workbench from Python: the names that scripts and notebooks need.

Each name is imported when it is first used, so that counting and fitting need no torch. Only this package re-exports.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from study.api.calls import Sweep, fit, launch, load_ledger, report, train
    from study.config.run_config import RunConfig
    from study.counting.architecture import Architecture
    from study.data.batches import PackedBatches
    from study.model.lightning import MaskedLanguageModelling

__all__ = [
    "Architecture",
    "MaskedLanguageModelling",
    "PackedBatches",
    "RunConfig",
    "Sweep",
    "fit",
    "launch",
    "load_ledger",
    "report",
    "train",
]

HOMES = {
    "Architecture": "study.counting.architecture",
    "RunConfig": "study.config.run_config",
    "PackedBatches": "study.data.batches",
    "MaskedLanguageModelling": "study.model.lightning",
    "train": "study.api.calls",
    "Sweep": "study.api.calls",
    "launch": "study.api.calls",
    "load_ledger": "study.api.calls",
    "fit": "study.api.calls",
    "report": "study.api.calls",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Import a name of the interface; raises AttributeError for any other."""
    if name not in HOMES:
        raise AttributeError(f"module 'study.api' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the names of the interface, for completion."""
    return sorted(__all__)
