"""Jobs, and executors for them in the shape of concurrent.futures: processes on this machine, Slurm, Ray."""
