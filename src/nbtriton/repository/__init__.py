"""Model repositories on disk, and the real server that verifies what nbtriton says about them."""
