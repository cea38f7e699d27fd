"""KServe v2 over HTTP/1.1."""
