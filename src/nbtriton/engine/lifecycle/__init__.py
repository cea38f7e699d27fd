"""How versions of models come, replace each other and go; how a server ends."""
