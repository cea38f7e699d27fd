"""The options of a model repository: `Server.load_repository`, ``%triton_load`` and ``nbtriton serve`` have them from here."""

# Annotations are evaluated: the table is read from them.
import math
import threading
from collections.abc import Sequence
from typing import Annotated, TypedDict

from nbtriton.common.checks import NAMES, SWITCH, Kind, is_number, whole
from nbtriton.options.table import Option, table_of
from nbtriton.options.triton import BOOLEAN, INTEGER, NAME

__all__ = ["REPOSITORY", "RepositorySettings"]

_SECONDS = Kind(
    lambda value: is_number(value) and not math.isnan(value) and value <= threading.TIMEOUT_MAX,
    "a number of seconds",
)
_TEXT = Kind(lambda value: isinstance(value, str), "a text")


class RepositorySettings(TypedDict, total=False):
    """How the models of a repository are loaded."""

    control_mode: Annotated[str, Option(
        "--model-control-mode --control", "who loads models (none): none (all at the start), poll (the repository is read "
        "again and again), explicit (those of --load-model, and what clients ask for)",
        choices=("none", "poll", "explicit"), default="none")]  # fmt: skip
    load_models: Annotated["Sequence[str]", Option(
        "--load-model", "with explicit control, load this one; * for all", "TEXT", action="append", default=(),
        kind=NAMES)]  # fmt: skip
    poll_s: Annotated[float, Option(
        "--repository-poll-secs --poll-s", "seconds between two polls (15); 0 for none", "SECONDS", float, 15.0,
        kind=_SECONDS)]  # fmt: skip
    auto_complete: Annotated[bool, Option(
        "--disable-auto-complete-config", "take configurations as they are", action="store_false", default=True,
        kind=SWITCH)]  # fmt: skip
    config_name: Annotated[str, Option(
        "--model-config-name", "prefer configs/NAME.pbtxt to config.pbtxt", NAME.shown, NAME.read, "", kind=_TEXT)]  # fmt: skip
    strict_readiness: Annotated[bool, Option(
        "--strict-readiness", "the server is ready only if every model is, by default", BOOLEAN.shown, BOOLEAN.read, True,
        kind=SWITCH)]  # fmt: skip
    exit_on_error: Annotated[bool, Option(
        "--exit-on-error", "end if a model cannot be loaded at the start; otherwise the others serve", BOOLEAN.shown,
        BOOLEAN.read, False, kind=SWITCH)]  # fmt: skip
    load_threads: Annotated[int, Option(
        "--model-load-thread-count", "models that load at a time (4)", INTEGER.shown, INTEGER.read, 4, kind=whole(1))]  # fmt: skip
    load_retries: Annotated[int, Option(
        "--model-load-retry-count", "times that a version that failed is tried again", INTEGER.shown, INTEGER.read, 0,
        kind=whole(0))]  # fmt: skip


REPOSITORY = table_of(RepositorySettings)
