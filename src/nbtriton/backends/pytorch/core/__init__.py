"""What every batch of the pytorch backend runs through. Compiled where a compiler is."""
