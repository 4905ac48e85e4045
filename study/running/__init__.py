"""One coordinator drives the runs of a sweep, and its scores: launch, deaths and retries, status, and what people order."""
