"""Where runs execute: on this machine, on Slurm or on Ray, each in the shape of concurrent.futures."""
