"""Explanations of recorded traffic, and diagnosis of configurations and models."""
