"""Clients of a server elsewhere, over HTTP and gRPC."""
