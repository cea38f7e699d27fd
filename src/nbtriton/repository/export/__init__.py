"""What a server holds, written as a model repository."""
