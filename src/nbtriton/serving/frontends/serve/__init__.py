"""`nbtriton serve`: tritonserver's flags, the log, the command."""
