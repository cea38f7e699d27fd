"""Certificates for tests, made by openssl when they are needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["openssl", "write_keys"]


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def signed(folder: Path, name: str, *, by: str, subject: str = "localhost") -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        folder,
        "req",
        *key,
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.csr",
        "-subj",
        f"/CN={subject}",
    )
    # All but the names is what Python 3.13 and newer insist on, by RFC 5280.
    (folder / "names").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nkeyUsage=critical,digitalSignature\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key",
        "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "names",
    )  # fmt: skip


def write_keys(folder: Path) -> Path:
    """Write ``NAME.pem`` and ``NAME.key`` of a root, a server, a client, and a client of another root."""
    for root in ("root", "stranger"):
        openssl(
            folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{root}.key", "-out", f"{root}.pem", "-subj", f"/CN={root}", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
    signed(folder, "server", by="root")
    signed(folder, "client", by="root", subject="client")
    signed(folder, "unknown", by="stranger", subject="client")
    return folder
