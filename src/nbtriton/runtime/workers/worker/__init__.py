"""The code that runs in a worker: NumPy, the standard library and nbtriton's own backends only."""
