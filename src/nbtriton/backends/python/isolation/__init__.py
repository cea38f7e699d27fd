"""Modules, event loops and environments of one model, separate from other models'."""
