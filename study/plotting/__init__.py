"""One file per figure: first its data, then the drawing. Nothing is tested or fitted here."""
