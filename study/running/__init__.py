"""One coordinator executes the runs and the scores of a sweep: launch, retries, status, and what people order."""
