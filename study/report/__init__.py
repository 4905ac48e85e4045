"""Records in plain words: a sweep's answer and its tables."""
