"""W&B: the mirror of what runs write, and the import of runs that others logged."""
