"""Fits that others published, made again from their data: one module a study, the published numbers beside ours."""
