"""Loading, replacing and unloading of models; closing of a server."""
