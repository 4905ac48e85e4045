"""One run from start to record: execution, checkpoints, metrics, filing, imported and compressed encoders. Knows no sweep."""
