"""Programs that want a newer C library than this machine's: they are started by the loader of a newer Debian."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["command_of"]

# Its packages are signed; the key is in every Debian, and in Ubuntu's `debian-archive-keyring`.
_KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCE = f"deb [signed-by={_KEY}] http://deb.debian.org/debian trixie main\n"
_PACKAGES = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libssl3t64", "libzstd1")
_LIBRARIES = Path("usr", "lib", "x86_64-linux-gnu")
_TIMEOUT_S = 300


def command_of(program: str, directory: Path) -> tuple[str, ...]:
    """Return what starts a program here; libraries that are missing are put into a directory."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if listing.returncode == 0 and "not found" not in listing.stdout + listing.stderr:
        return (program,)
    libraries = directory / _LIBRARIES
    if not (directory / "complete").exists():
        _unpack(directory)
    return (str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), program)


def _unpack(directory: Path) -> None:
    """Get the libraries with lists of packages of our own, as no machine's release may change."""
    lists = directory / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = directory / "sources.list"
    sources.write_text(_SOURCE)
    apt = [
        "apt-get", "-q", "-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-",
        "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={directory / 'cache'}",
        *(["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip
    print(f"{directory.name}: getting {', '.join(_PACKAGES)} of Debian 13", file=sys.stderr)
    for command in (["update"], ["download", *_PACKAGES]):
        _run([*apt, *command], directory)
    for package in directory.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(directory)], directory)
    (directory / "complete").touch()


def _run(command: list[str], where: Path) -> None:
    done = subprocess.run(
        command, cwd=where, text=True, capture_output=True, check=False, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, (
        f"{' '.join(command)}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
