"""The python backend and its `triton_python_backend_utils`."""

from nbtriton.backends.python.backend import PythonBackend, install_pb_utils

__all__ = ["PythonBackend", "install_pb_utils"]
