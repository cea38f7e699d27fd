"""HTTP/2 and HPACK without I/O (RFC 9113, RFC 7541): the server's side of a connection.

Bytes in, events out; bytes to send are collected until `data_to_send`. No sockets, threads, clocks or gRPC:
the time and the limits are arguments.
"""
