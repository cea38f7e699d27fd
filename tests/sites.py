"""A little HTTP server of what a browser or another client under test asks for."""

from __future__ import annotations

import http.server
import sys


class Site(http.server.ThreadingHTTPServer):
    """A server on loopback that is silent when a client leaves before it has read its response, as a closed page does."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
