"""Downstream tasks as data: a small YAML says what a task is, and its examples are read from files, a hub or the docstrings."""
