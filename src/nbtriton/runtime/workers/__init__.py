"""Worker processes of instances: start and end, shared memory, control messages."""
