"""The path of every batch in the pytorch backend; compiled where a compiler is available."""
