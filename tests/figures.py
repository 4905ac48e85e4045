"""What stands above a figure."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Annotation


def title_of(figure: Figure) -> str:
    """The finding and the note above a figure."""
    notes = [artist.get_text() for artist in figure.artists if isinstance(artist, Annotation)]
    return "\n".join([figure.get_suptitle().rstrip("\n"), *notes])
