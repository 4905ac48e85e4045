"""Closed forms of an encoder: architecture, parameters, FLOPs, memory, latency, and shapes that meet a target.

Nothing is built, trained or read from a results folder here.
"""
