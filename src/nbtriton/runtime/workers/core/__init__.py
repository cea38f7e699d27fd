"""The path of every batch between the processes; compiled where a compiler is available."""
