"""One coordinator runs a sweep: launch, deaths and retries, shared runs, status, and what a person tells it from outside."""
