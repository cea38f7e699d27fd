"""`nbtriton serve`: the flags of tritonserver, the log, the command."""
