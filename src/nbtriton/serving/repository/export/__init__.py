"""Export of a server's models as a model repository."""
