"""Inference latency: measured, kept as a table, and predicted for shapes that were not measured."""
