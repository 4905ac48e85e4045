"""W&B: mirroring of our runs, and import of others' runs. Reads what runs wrote; no run waits for it."""
