"""The simulated server: plain typed code, compiled where the build compiles."""
