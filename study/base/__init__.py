"""What every room uses: errors, schemas, quantities, text, files, seeds and statistics.

Imports nothing else of study.
"""
