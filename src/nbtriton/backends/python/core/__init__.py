"""What every batch of the python backend runs through. Compiled where a compiler is."""
