"""Archives of environments: tar files, optionally compressed by gzip, as in Triton."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

from nbtriton.common.errors import InternalError

__all__ = ["extract"]


def extract(archive: Path, folder: Path) -> None:
    """Unpack an archive into an empty folder, and nothing outside of it.

    Raises
    ------
    InternalError
        Not such a file, an incomplete one, or one that would write elsewhere; with Triton's text.
    """
    try:
        with archive.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        opened = tarfile.open(archive, "r:gz" if compressed else "r:")  # noqa: SIM115 - closed below
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InternalError(
            "archive_read_open_filename() failed.",
            hint=f"{archive} is no tar or tar.gz file, as conda-pack and venv-pack make them: {error}",
        ) from None
    try:
        with opened:
            opened.extractall(folder, filter=_only_inside)  # noqa: S202 - checked, member by member
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InternalError(
            f"archive_read_next_header() failed with error code = -30 error message is {error}",
            hint=f"{archive} cannot be unpacked to {folder}",
        ) from None


def _only_inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Refuse devices, and files outside of the folder.

    A symbolic link may lead outside, like that of a virtual environment to its Python, but nothing is written
    through it.
    """
    check = tarfile.tar_filter if member.issym() else tarfile.data_filter
    return check(member, folder)
