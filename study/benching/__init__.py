"""What `study bench` measures: how fast this machine trains, starts and reads, beside the usual peer and its own limits."""
