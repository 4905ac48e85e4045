"""Sizes without training: parameters and costs of an architecture, differences, effects of changes, shapes for a target.

The formulas are those of `study.counting`; this room compares and describes.
"""
