"""Clients of a Triton server at an address: one interface, over HTTP and over gRPC."""
