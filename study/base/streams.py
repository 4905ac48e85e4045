"""Standard streams whose terminal, file or pipe may be gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal


class _Outlived:
    """A stream that drops text that cannot be written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def tolerate_lost(*names: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Drop output to these streams inside the block once their terminal, file or pipe accepts no more."""
    kept = {name: getattr(sys, name) for name in names}
    for name, stream in kept.items():
        setattr(sys, name, _Outlived(stream))
    try:
        yield
    finally:
        for name, stream in kept.items():
            setattr(sys, name, stream)
