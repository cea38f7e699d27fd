"""The simulated server: typed code that can be compiled."""
