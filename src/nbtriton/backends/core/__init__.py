"""The path of every batch in any backend; compiled where a compiler is available."""
