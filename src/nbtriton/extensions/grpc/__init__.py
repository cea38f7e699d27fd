"""KServe v2 over gRPC."""
