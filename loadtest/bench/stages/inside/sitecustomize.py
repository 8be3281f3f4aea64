"""Starts the sampler: Python runs this file at its start, as this folder is first on the worker's PYTHONPATH."""

from loadtest.bench.stages.sampler import start

start()
