"""The real tritonserver, and the same requests to it and to nbtriton."""
