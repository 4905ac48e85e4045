"""Reproductions of published fits from their data, one function per study. They know no sweeps."""
