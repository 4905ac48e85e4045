"""Sizes without training: what an architecture is made of, how two differ, what a change adds, which shapes fit."""
