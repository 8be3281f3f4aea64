"""Python runs this when it starts, as this folder is first on the worker's PYTHONPATH."""

from loadtest.bench.stages.sampler import start

start()
