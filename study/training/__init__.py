"""One run from start to record: execution, checkpoints, metrics, filing, and imported encoders. Knows no sweep."""
