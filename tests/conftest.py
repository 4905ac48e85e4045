"""What the tests share: small architectures, a small corpus, and checks of tensor shapes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

CHECKED = ("embeddings", "encoder", "heads", "masked_language_model")
install_import_hook([f"study.model.{name}" for name in CHECKED], "beartype.beartype")
install_import_hook("study.data.masking", "beartype.beartype")

os.environ["STUDY_CACHE"] = os.environ.get("STUDY_TEST_CACHE", tempfile.mkdtemp(prefix="study-cache-"))
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["WANDB_MODE"] = "offline"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and published results beside the project; tests that need them are skipped elsewhere."""
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    return SHARED
