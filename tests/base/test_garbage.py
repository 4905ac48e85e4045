"""A pause of the garbage collector ends as it began."""

from __future__ import annotations

import gc

import pytest

from study.base import garbage


@pytest.mark.parametrize("enabled", [True, False])
def test_after_a_pause_the_collector_is_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with garbage.paused():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
