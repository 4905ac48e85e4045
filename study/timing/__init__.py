"""Timing encoders on this machine, which leaves the tables that study.latency reads."""
