"""Reproductions of published fits from their data, one module per study. They know no sweeps."""
