"""Sizes without training: parameters and costs of an architecture, differences, effects of changes, shapes for a target."""
