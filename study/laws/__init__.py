"""Scaling laws for any table: read, fit, intervals, forecasts, compute-optimal frontiers. This package knows no sweeps."""
