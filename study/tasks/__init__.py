"""Downstream tasks: a small YAML defines each, and examples come from files, the hub or the docstrings.

Nothing is tokenised or trained here.
"""
