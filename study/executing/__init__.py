"""Jobs, and their executors in the shape of concurrent.futures: processes on this machine, Slurm, Ray.

What a job does is not known here.
"""
