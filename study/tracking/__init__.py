"""W&B: mirroring of our runs, and import of others' runs."""
