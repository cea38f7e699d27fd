"""What can be asked of a running server: its state, traces, models that wait for each other."""
