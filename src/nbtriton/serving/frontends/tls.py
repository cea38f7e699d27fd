"""TLS settings of a port."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from nbtriton.common.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a port; all files are PEM.

    Parameters
    ----------
    certificate : str
        File with the server's certificate and the intermediate certificates.
    key : str
        File with its private key, not encrypted.
    root : str
        File with the root certificates that verify clients; needed with `mutual`.
    mutual : bool
        Whether a client needs a certificate.

    Examples
    --------
    >>> Tls("server.crt", "server.key").mutual
    False
    """

    certificate: str
    key: str
    root: str = ""
    mutual: bool = False

    def context(self, protocol: str) -> ssl.SSLContext:
        """Return the context of a port.

        Parameters
        ----------
        protocol : str
            ALPN name: ``"h2"`` or ``"http/1.1"``.

        Raises
        ------
        InvalidArgumentError
            A file is missing, is of the wrong kind, or does not match the other.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        _check("the server's certificate", self.certificate)
        _check("the server's key", self.key)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgumentError(
                f"'{self.certificate}' and '{self.key}' are not a certificate and its key in PEM: "
                f"{_reason(error)}"
            ) from None
        if self.mutual:
            _check("the root certificate", self.root)
            try:
                context.load_verify_locations(self.root)
            except ssl.SSLError as error:
                raise InvalidArgumentError(
                    f"'{self.root}' holds no certificate in PEM: {_reason(error)}"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _check(what: str, file: str) -> None:
    if not file:
        raise InvalidArgumentError(f"TLS needs the file of {what}")
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{what} cannot be read from '{file}': {error.strerror}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key asks for a password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
