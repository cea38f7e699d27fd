"""What every batch runs through, whatever the backend. Compiled where a compiler is."""
