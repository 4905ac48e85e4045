"""Scaling laws for anybody's table: reading it, fitting, intervals, forecasts, compute-optimal frontiers. Knows no sweep."""
