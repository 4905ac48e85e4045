"""Closed forms of an encoder: its architecture, parameters, FLOPs, memory and latency, and the shapes that meet a target."""
