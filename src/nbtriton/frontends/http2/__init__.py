"""HTTP/2 and HPACK without I/O (RFC 9113, RFC 7541): the server's side of a connection.

Bytes in, events out; what is sent is collected until it is asked for. Nothing here knows sockets, threads,
clocks or gRPC: the time is an argument, as is every limit.
"""
