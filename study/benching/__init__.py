"""The measurements of `study bench` and `study latency`, beside the usual peer and the machine's own limits.

Only commands and tests import this room.
"""
