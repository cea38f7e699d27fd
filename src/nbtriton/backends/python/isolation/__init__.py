"""Modules, event loops and environments of one model, apart from those of others."""
