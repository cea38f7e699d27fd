"""Verification against the real tritonserver: the same requests to it and to nbtriton."""
