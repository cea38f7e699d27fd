"""Instances in processes of their own: their start and end, shared memory, control messages."""
