"""Clients of a Triton server by URL: one interface, over HTTP and over gRPC."""
