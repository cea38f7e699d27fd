"""Errors, optional packages, texts of arguments: what every folder may use."""
