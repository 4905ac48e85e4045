"""W&B: mirroring of our runs, and import of others' runs. It reads what runs wrote, and no run waits for it."""
