"""What `triton_python_backend_utils` gives to a model."""
