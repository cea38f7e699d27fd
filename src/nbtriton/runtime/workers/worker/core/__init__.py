"""The path of every batch in a worker; compiled where a compiler is available."""
