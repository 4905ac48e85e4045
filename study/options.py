"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

results_option = click.option(
    "--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Folder of all results."
)
