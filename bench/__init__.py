"""Benchmarks of nbtriton compared with its alternatives: ``python -m bench --list``."""
