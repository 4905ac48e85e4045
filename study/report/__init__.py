"""Records in plain words: a sweep's answer and its tables. The statistics are those of `study.evidence`."""
