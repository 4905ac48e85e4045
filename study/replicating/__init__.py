"""Reproductions of published fits from their data, one module per study."""
