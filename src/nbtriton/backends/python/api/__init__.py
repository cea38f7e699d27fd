"""The contents of `triton_python_backend_utils`."""
