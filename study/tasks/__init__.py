"""Downstream tasks: a small YAML defines each; examples come from files, the hub or the docstrings."""
