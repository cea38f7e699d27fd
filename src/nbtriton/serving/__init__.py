"""Model repositories in and out, and KServe v2 over HTTP and gRPC, both ends."""
