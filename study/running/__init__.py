"""One coordinator executes the runs and the scores of a sweep: launch, retries, status, and what people order.

What to run is decided in `study.planning` and `study.scoring`, and where in `study.executing`.
"""
