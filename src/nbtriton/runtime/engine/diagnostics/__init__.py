"""Inspection of a running server: state, traces, deadlock detection."""
