"""What every room needs and none is about: errors, schemas, quantities, text, files, seeds, statistics.

Imports nothing of study.
"""
