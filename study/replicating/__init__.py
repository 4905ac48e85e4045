"""Reproductions of published fits from their data, one function per study, and the times of fits; no sweep is trained here."""
