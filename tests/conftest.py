"""Fixtures, options and skips that every test folder may need."""

from __future__ import annotations

import gc
import logging
import os
import random
import resource
import shutil
import signal
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from tests.seeds import FIXED, SEED, free_seed

# A child that hangs is aborted (tests/children.py): it writes its stacks, and leaves no memory image.
os.environ.setdefault("PYTHONFAULTHANDLER", "1")
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

# Folders whose tests share a browser.
WITH_BROWSER = ("tests/lab/", "tests/page/")

# No deadline for an example, and none for making one: the machine may be busy with other things.
hypothesis.settings.register_profile(
    "gate", derandomize=FIXED, deadline=None, print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)  # fmt: skip
hypothesis.settings.register_profile(
    "fast", hypothesis.settings.get_profile("gate"), max_examples=25
)
hypothesis.settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--shuffle``: the files in a random order, to find what leans on another file."""
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        # The workers of pytest-xdist read the command line anew: all need the same order.
        const=int(os.environ.setdefault("NBTRITON_SHUFFLE", str(free_seed()))),
        metavar="SEED",
        help="run the files in a random order, that of a seed if one is given",
    )
    parser.addoption(
        "--gc-threshold",
        type=int,
        metavar="OBJECTS",
        help="collect garbage after this many new objects: with 1 on the compiled build, an object that is"
        " cleared while it is alive does not stay unnoticed",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print what repeats this run."""
    order = config.getoption("shuffle")
    return [
        f"seed: NBTRITON_SEED={SEED}",
        *([] if order is None else [f"order: --shuffle={order}"]),
    ]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser: what `make test` found, else what is on the PATH."""
    path = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
    if not path:
        pytest.skip("no Chromium: set NBTRITON_CHROMIUM, or run `make test`, which gets one")
    return path


@pytest.fixture(scope="session")
def reference():
    """The real tritonserver and perf_analyzer, installed on first use."""
    from nbtriton.common.errors import TritonError
    from nbtriton.extensions.verify.install import ensure_reference

    try:
        return ensure_reference()
    except TritonError as error:
        pytest.skip(f"the real tritonserver cannot be installed here: {error.message}")


def pytest_configure(config: pytest.Config) -> None:
    """Set the garbage collector; hear Ctrl-C where a script started the tests with `&`, which leaves it ignored."""
    threshold = config.getoption("gc_threshold")
    if threshold is not None:
        gc.set_threshold(threshold)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the files of a folder with a browser together, as `--dist loadfile` keeps the tests of a file."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = super()._split_scope(nodeid)
            return scope.rpartition("/")[0] if scope.startswith(WITH_BROWSER) else scope

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the collected tests and modules to no garbage collection: at ten thousand tests each takes half a second.

    Loggers of torch propagate: pytest adds two handlers to each of 42 that do not, three times a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        for name, logger in logging.root.manager.loggerDict.items():
            if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
                logger.propagate = True
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave what a file has imported to no collection of a later file, either: a tenth of what the tests took."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the files into the order that was asked for; skip what needs a GPU that is not there."""
    seed = config.getoption("shuffle")
    if seed is not None:
        files = list(dict.fromkeys(item.path for item in items))
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
    else:
        # Files with slow tests first: the last ones are short, so that no process waits long for another.
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(
            key=lambda item: (not item.nodeid.startswith(WITH_BROWSER), item.path not in slow)
        )
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    try:
        from torch.cuda import is_available
    except ImportError:
        is_available = bool
    if not is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="torch finds no NVIDIA GPU here"))


@pytest.fixture(autouse=True)
def handlers_stay():
    """A test leaves the handlers of SIGINT and SIGTERM as they were.

    With one that only notes a SIGTERM, the children of a later test's `multiprocessing.Pool` never end.
    """
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    yield
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.fixture
def own_progress(monkeypatch, tmp_path):
    """A reader's progress is kept in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture(scope="session")
def package_index(tmp_path_factory):
    """A folder of wheels, this process's NumPy and ``tiny`` 1.0 and 2.0; environments are made beside it."""
    from tests.workers.wheels import write_numpy_wheel, write_wheel

    folder = tmp_path_factory.mktemp("index") / "wheels"
    write_numpy_wheel(folder)
    for version in (1, 2):
        write_wheel(folder, "tiny", f"{version}.0", f"VERSION = {version}\n")
    return folder


@pytest.fixture
def wheels(package_index, monkeypatch):
    """All that pip and uv find; an environment is made once for all tests that ask for the same one."""
    folder = str(package_index)
    for name, value in {
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder, "PIP_CONFIG_FILE": os.devnull,
        "UV_FIND_LINKS": folder, "UV_OFFLINE": "1", "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(package_index.parent / "cache"),
        "NBTRITON_ENVIRONMENTS": str(package_index.parent / "made"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return package_index
