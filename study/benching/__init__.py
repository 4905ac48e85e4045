"""What `study bench` and `study latency` measure: how fast this machine trains, starts and reads, beside the usual peer and the
machine's own limits. Only commands and tests import this room.
"""
