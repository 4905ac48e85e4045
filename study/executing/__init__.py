"""Jobs, and their executors in the shape of concurrent.futures: processes on this machine, Slurm, Ray."""
