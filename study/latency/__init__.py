"""Inference latency: the tables of what was measured, and the latency that they predict for other shapes."""
