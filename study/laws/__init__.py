"""Scaling laws for any table: reading it, fitting, intervals, forecasts and compute-optimal frontiers. Nothing here knows
sweeps.
"""
