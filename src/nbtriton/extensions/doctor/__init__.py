"""Errors and settings that cannot work as intended, of a model or of its configuration, without traffic."""
