"""The configurations of runs, scores and sweeps as strict models, with their fingerprints. Nothing runs here."""
