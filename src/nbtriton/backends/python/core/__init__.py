"""The path of every batch in the python backend; compiled where a compiler is available."""
