"""One file per figure: first its data, then the drawing."""
