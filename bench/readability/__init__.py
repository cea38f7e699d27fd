"""The readability pipeline of NVIDIA's example: a repository, cells of a notebook, and a benchmark.

``python -m bench.readability write DIR`` writes the model repository, ``python -m bench.readability
table`` measures it in three placements. See docs/readability.md.
"""
