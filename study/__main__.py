"""`python -m study` is the command `study`."""

from __future__ import annotations

from study.cli import main

if __name__ == "__main__":
    main()
