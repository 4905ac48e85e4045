"""One file a figure: first the data it shows, then the drawing."""
