"""Install Debian's RTSP server for the tests of `video`, if it is missing and that needs no password.

usage: get_rtsp.py FILE

FILE gets the reason why there is none, and is empty if there is one; tests that need it then skip.
"""

from __future__ import annotations

import sys
from pathlib import Path

from environment import say
from get_browser import apt_install

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.steps.videos import GSTREAMER, missing_for_rtsp


def main() -> None:
    """Install what is missing, and write what still is."""
    if missing_for_rtsp():
        for package in GSTREAMER:
            apt_install(package, "for an RTSP server, a minute")
        missing_for_rtsp.cache_clear()
    missing = missing_for_rtsp()
    say(f"No RTSP server could be had: {missing}" if missing else "RTSP server: Debian's")
    Path(sys.argv[1]).write_text(missing)


if __name__ == "__main__":
    main()
