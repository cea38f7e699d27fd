"""What every request runs through. Compiled where a compiler is (pyproject.toml)."""
