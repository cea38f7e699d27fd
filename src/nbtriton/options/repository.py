"""The options of a model repository, in and out: `Server.load_repository` and `export`, their magics and commands."""

# Annotations are evaluated: the table is read from them.
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from nbtriton.common.checks import MAPPING, NAMES, SWITCH, Kind, is_number, optional, whole
from nbtriton.options.reading import name_list
from nbtriton.options.table import Option, table_of
from nbtriton.options.triton import BOOLEAN, INTEGER, NAME

_SECONDS = Kind(
    lambda value: is_number(value) and not math.isnan(value) and value <= threading.TIMEOUT_MAX,
    "a number of seconds",
)
_PLACE = Kind(
    lambda value: SWITCH.accepts(value) or (isinstance(value, str) and "://" in value),
    "True, False or a URI such as s3://bucket/models",
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


class CopySettings(TypedDict, total=False):
    """How models are written as a repository."""

    carry: Annotated["Collection[str] | bool", Option(
        "--carry", "variables of the notebook to write too; in Python True for all that are used", "NAMES", name_list, (),
        action="append", join=lambda lists: [name for names in lists for name in names],
        kind=Kind(lambda given: SWITCH.accepts(given) or NAMES.accepts(given), "True or a list of names"))]  # fmt: skip
    files: Annotated["Mapping[str, Mapping[str, str | bytes | Path]] | None", Option(
        "", "labels, warmup data and other files by model and path within its directory", kind=optional(MAPPING))]  # fmt: skip
    torch: Annotated[str, Option(
        "--torch", "torch modules as TorchScript or torch.export files for Triton's pytorch backend (torchscript), or for "
        "its python backend", choices=("torchscript", "export", "python"), default="torchscript")]  # fmt: skip
    overwrite: Annotated[bool, Option(
        "--overwrite", "replace models that no export has written", default=False, action="store_true")]  # fmt: skip
    python_prefix: Annotated["str | None", Option(
        "--python-prefix", "where the server has the Python of virtual environments, such as /usr; by default as here", "DIR")]  # fmt: skip


class ExportSettings(CopySettings, total=False):
    """How models are written as a repository, for which platforms, and compared with the real server."""

    verify: Annotated[bool, Option(
        "--verify", "compare with the real tritonserver, model by model", default=False, action="store_true")]  # fmt: skip
    requests: Annotated["Mapping[str, Sequence[Mapping[str, Any]]] | None", Option(
        "--requests", "what to verify with: model to list of mappings; generated ones by default", "EXPR")]  # fmt: skip
    reference: Annotated["Path | str | object | None", Option(
        "--reference", "the real server, by default found on PATH; 'install' sets one up (a minute, 150 MB)", "PATH|install")]  # fmt: skip
    kubernetes: Annotated["bool | str", Option(
        "--kubernetes", "also inference_service.yaml for KServe and values.yaml for Triton's Helm chart; with the place of the "
        "models in the cluster, such as s3://bucket/models", "URI", default=False, alone=True, kind=_PLACE)]  # fmt: skip
    ray_serve: Annotated[bool, Option(
        "--ray-serve", "also ray_serve.py, which serves the models on Ray Serve", default=False, action="store_true",
        kind=SWITCH)]  # fmt: skip


COPY, EXPORT = table_of(CopySettings), table_of(ExportSettings)
