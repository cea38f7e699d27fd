"""Errors and settings that cannot work as intended, of a model or of its configuration, without traffic."""

# Annotations are evaluated: the table of options is read from them.
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from nbtriton.common.checks import CALL, MAPPING, SWITCH, Kind, check, number, optional
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError, nearest
from nbtriton.drawing.living import advice_html
from nbtriton.drawing.numbers import counted
from nbtriton.drawing.table import table_text
from nbtriton.extensions.doctor.model_tests import LIMIT_S, model_findings, untested
from nbtriton.extensions.doctor.settings_rules import Finding, as_cell, settings_findings
from nbtriton.extensions.doctor.validation import validate_repository
from nbtriton.lab.explain.findings import IN_PROCESSES, Settings
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.model.config import (
    ModelConfig,
    as_config,
    differences,
    ignored_fields,
    is_ensemble,
    normalize,
    parse_pbtxt,
    validate,
    validate_io,
)
from nbtriton.options.reading import quoted
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.snapshot import InterpreterWait
from nbtriton.runtime.engine.diagnostics.interpreter import advice, is_waiting
from nbtriton.runtime.engine.status import way_sentence

# Instances for each core from which more of them are hardly meant.
_MOST = 4


class DoctorSettings(TypedDict, total=False):
    """How the models of a server are tested themselves."""

    test: Annotated[bool, Option(
        "--test", "run a copy of each model on batches of chosen rows, and check that a row's result depends on nothing but "
        "the row", default=False, action="store_true", kind=SWITCH)]  # fmt: skip
    inputs: Annotated["Mapping[str, Any] | None", Option(
        "--inputs", "rows to test with, a mapping of arrays, the batch dimension first (by default generated)", "EXPR",
        kind=optional(Kind(lambda value: MAPPING.accepts(value) and value, MAPPING.words)))]  # fmt: skip
    duration_s: Annotated[float, Option(
        "--duration-s", f"longest test of a model ({LIMIT_S:g}); where it is too short, a finding says so", "S", float, LIMIT_S,
        kind=number(above=0))]  # fmt: skip


DOCTOR = table_of(DoctorSettings)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings about some models, displayed as a table.

    >>> found = nt.doctor(server)
    >>> found.models, found.ok
    (('double',), True)

    Attributes
    ----------
    models : tuple of str
    findings : tuple of Finding
        The most severe first.
    tested : tuple of str
        The models that were tested themselves.
    """

    models: tuple[str, ...]
    findings: tuple[Finding, ...]
    tested: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings and hints may exist."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def headline(self) -> str:
        """The numbers of findings."""
        counts = [
            f"{n} {severity}{'s' * (n != 1)}"
            for severity in ("error", "warning", "hint")
            if (n := sum(finding.severity == severity for finding in self.findings))
        ]
        models = f"{len(self.models)} model{'s' * (len(self.models) != 1)}"
        tested = " and tested" if self.tested else ""
        if tested and len(self.tested) < len(self.models):
            tested = f", {len(self.tested)} of them tested"
        return f"{models} looked at{tested}: {', '.join(counts) or 'nothing wrong'}"

    def __repr__(self) -> str:
        if not self.findings:
            return self.headline
        lines = [self.headline]
        for one in self.findings:
            lines.append(f"{one.severity}: {one.model}: {one.subject}: {one.text}")
            lines += [f"    why: {one.cause}"] if one.cause else []
            lines += [f"    fix: {line}" for line in one.fix.splitlines()[:1]]
            lines += [f"         {line}" for line in one.fix.splitlines()[1:]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self.findings:
            return f"<p>{escape(self.headline)}</p>"
        found = "".join(map(_finding_html, self.findings))
        return f'<div class="nbt-doctor"><div style="font-weight:600;margin:.3em 0">{escape(self.headline)}</div>{found}</div>'

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def table(self) -> str:
        """Return the findings as an aligned table.

        Examples
        --------
        >>> nt.doctor(server, "double").table().splitlines()[0]
        '1 model looked at: nothing wrong'
        """
        return table_text(_COLUMNS, self._rows(), caption=self.headline)

    def _rows(self) -> list[list[object]]:
        return [[f.severity, f.model, f.subject, f.text, f.cause, f.fix] for f in self.findings]


_COLUMNS = ("severity", "model", "subject", "found", "why", "fix")


def _finding_html(one: Finding) -> str:
    """Write a finding as HTML: what it is about, the finding, its cause, and the cell or the sentence that helps."""
    parts = [
        (
            f"<div><b>{escape(one.severity)}</b> &middot; {escape(one.model)} &middot; "
            f'<code style="background:none;color:inherit">{escape(one.subject)}</code></div>'
        ),
        f"<div>{escape(one.text)}</div>",
    ]
    if one.cause:
        parts.append(f'<div style="opacity:.85">why: {escape(one.cause)}</div>')
    if one.fix:
        parts.append(
            advice_html(one.fix)
            if one.fix.startswith("%%")
            else f"<div>fix: {escape(one.fix)}</div>"
        )
    return f'<div style="margin:8px 0;padding-left:10px;border-left:3px solid rgba(128,128,128,.6)">{"".join(parts)}</div>'


@signed(DOCTOR)
def doctor(
    target: "Server | str | Path | Mapping[str, Any] | ModelConfig",
    model: str = "",
    *,
    observer: Observer | None = None,
    **options: Unpack[DoctorSettings],
) -> Diagnosis:
    """Look for errors and ineffective settings, without sending traffic.

    Parameters
    ----------
    target : Server, path or configuration
        A server's loaded models; a model repository, the directory of one of its models or a
        ``config.pbtxt``; or a configuration as text, dict or message.
    model : str
        Of a server: only this model.
    observer : callable, optional
        Called with a `PerfProgress` before each request of a test.
    **options
        Of a server, whose models `nbtriton.extensions.doctor.model_tests.TESTS` test; see the table.

    Returns
    -------
    Diagnosis
        Load errors are in Triton's words.

    Raises
    ------
    NotFoundError
        No such model or directory.

    Examples
    --------
    >>> nt.doctor(server)
    1 model looked at: nothing wrong
    """
    check(
        {"model": model, "observer": observer},
        {"model": Kind(lambda value: isinstance(value, str), "a name"), "observer": optional(CALL)},
    )
    given = read_settings("doctor", DOCTOR, options)
    if hasattr(target, "engine"):
        return _of_server(target, model, observer=observer, **given)
    if given["test"] or model or given["inputs"] is not None:
        loads = "server.load(…)"
        if isinstance(target, str | Path):
            loads = f"server.load_repository({str(target)!r})"
        raise InvalidArgumentError(
            "models are tested where they are loaded",
            hint=f"{loads}, then nt.doctor(server, name, test=True)",
        )
    if isinstance(target, ModelConfig | Mapping):
        return _diagnosis(*_of_config(as_config(target)))
    if not isinstance(target, str | Path):
        raise InvalidArgumentError(
            "doctor looks at a server, a directory, a file or a configuration; found "
            f"{type(target).__name__}"
        )
    path = Path(target)
    colon = ":" in str(target) and not os.path.exists(target)  # noqa: PTH110 - a long text is no error
    if isinstance(target, str) and ("\n" in target or "{" in target or colon):
        return _diagnosis(*_of_text(target))
    if path.is_file():
        return _diagnosis(*_of_text(path.read_text(encoding="utf-8"), path.parent.name, str(path)))
    if not path.is_dir():
        raise NotFoundError(f"there is no directory or file '{path}'")
    if any(path.glob("config.*pbtxt")):
        return _of_repository(path.parent, path.name)
    return _of_repository(path)


def _diagnosis(
    models: Sequence[str], findings: Sequence[Finding], tested: Sequence[str] = ()
) -> Diagnosis:
    return Diagnosis(
        tuple(models), tuple(sorted(findings, key=lambda one: (one.rank, one.model))), tuple(tested)
    )


def _of_text(text: str, name: str = "", source: str = "") -> tuple[list[str], list[Finding]]:
    try:
        config = parse_pbtxt(text, source=source) if source else parse_pbtxt(text)
    except TritonError as error:
        return [name or "config.pbtxt"], [_error(name or "config.pbtxt", error)]
    config.name = config.name or name or "model"
    return _of_config(config)


def _of_config(config: ModelConfig) -> tuple[list[str], list[Finding]]:
    name = config.name or "model"
    try:
        normal = normalize(config, name=name)
        validate(normal)
        validate_io(normal)
    except TritonError as error:
        return [name], [_error(name, error)]
    findings = [*settings_findings(normal), *_ignored(name, ignored_fields(config))]
    return [name], [*findings, *_elsewhere(normal)]


def _of_repository(directory: Path, only: str = "") -> Diagnosis:
    found = {finding.name: finding for finding in validate_repository(directory)}
    configs = {name: one.config for name, one in found.items() if one.config is not None}
    findings: list[Finding] = []
    names = [only] if only else sorted(found)
    for name in names:
        one = found.get(name)
        if one is None:
            raise NotFoundError(
                f"there is no model '{name}' in '{directory}'", hint=nearest(name, found)
            )
        if one.error is not None:
            findings.append(_error(name, one.error))
        elif one.config is not None:
            findings += settings_findings(one.config, configs)
            findings += _elsewhere(one.config)
        findings += _ignored(name, one.ignored)
    return _diagnosis(names, findings)


def _of_server(
    server: Any,
    name: str,
    *,
    test: bool,
    inputs: Mapping[str, Any] | None,
    duration_s: float,
    observer: Observer | None,
) -> Diagnosis:
    registry = server.engine.registry
    known = sorted({*registry.entries, *registry.absent})
    if name and name not in known:
        raise NotFoundError(
            f"Request for unknown model: '{name}' is not found", hint=nearest(name, known)
        )
    names = [name] if name else known
    configs = registry.configs()
    findings: list[Finding] = []
    tested: list[str] = []
    began_s = time.monotonic()
    for index, one in enumerate(names):
        if one not in configs:
            reasons = [reason for reason in registry.absent.get(one, {}).values() if reason]
            findings += [Finding("error", one, "load", reason) for reason in dict.fromkeys(reasons)]
            continue
        findings += map(as_cell, settings_findings(configs[one], configs))
        findings += _ignored(one, server.ignored(one).items())
        findings += _elsewhere(configs[one])
        findings += _completed(server, one, configs[one])
        findings += instance_findings(Settings.of(configs[one]), os.cpu_count() or 1)
        models = [model for model in server.models() if model.name == one]
        waits = (model.interpreter for model in models)
        findings += (waiting_finding(one, wait) for wait in waits if is_waiting(wait))
        far = (way_sentence(model, only_long=True) for model in models)
        findings += (_far(one, sentence) for sentence in far if sentence)
        if test and not untested(configs[one]):
            tested.append(one)
        if test and not (is_ensemble(configs[one]) and not name):
            told = partial(_tell, observer, began_s, one, index, len(names))
            findings += model_findings(server, one, inputs, limit_s=duration_s, on_test=told)
    return _diagnosis(names, findings, tested)


def _tell(
    observer: Observer | None,
    began_s: float,
    name: str,
    index: int,
    models: int,
    sent: int,
    sends: int,
    test: str,
) -> None:
    """Tell an observer which test of which model is next."""
    if observer is not None:
        elapsed_s = time.monotonic() - began_s
        done, total = index * sends + min(sent, sends), models * sends
        left_s = elapsed_s / done * (total - done) if done else None
        observer(PerfProgress.step(done, total, f"{name}: {test}", elapsed_s, left_s))


def _completed(server: Any, name: str, config: ModelConfig) -> Iterator[Finding]:
    """Yield findings about settings that configuration completion switched on."""
    given = server.engine.inspection.user_config(name)
    if config.HasField("dynamic_batching") and not given.HasField("dynamic_batching"):
        yield Finding(
            "hint", name, "dynamic_batching",
            f"it was switched on by the completion of the configuration, with max_batch_size "
            f"{config.max_batch_size}",
            "backends that complete a model with a batch dimension batch it (default-max-batch-size)",
            "say max_batch_size, and dynamic_batching if it is wanted",
        )  # fmt: skip


def instance_findings(settings: Settings, cores: int) -> Iterator[Finding]:
    """Yield a hint where a model has many more instances on the host than it has cores."""
    if settings.ensemble or settings.kind != "KIND_CPU" or settings.instances <= _MOST * cores:
        return
    yield Finding(
        "hint", settings.name, "instance_group",
        f"{settings.instances} instances on {counted(cores, 'core')}: what computes here runs {cores} at a time",
        "an execution that computes keeps a core busy; only what waits, for a disk, a network or another device, "
        "leaves it to others",
        f"%%triton_config {quoted(settings.name)}\ninstance_group {{ count: {cores} kind: KIND_CPU }}",
    )  # fmt: skip


def waiting_finding(name: str, wait: InterpreterWait) -> Finding:
    """Return the finding about instances that were seen to wait for the interpreter lock."""
    return Finding(
        "warning", name, "INSTANCE_ISOLATION", advice(name, wait),
        "threads of one process take turns at Python code: one holds the interpreter lock",
        f"%%triton_config {quoted(name)}\n{IN_PROCESSES}",
    )  # fmt: skip


def _far(name: str, sentence: str) -> Finding:
    return Finding(
        "hint", name, "INSTANCE_ISOLATION", sentence,
        "too small to be sent away: a request waits for the way as well as for the model",
        "larger batches, or instances on this machine",
    )  # fmt: skip


def _ignored(name: str, fields: Any) -> list[Finding]:
    return [
        Finding("warning", name, path, f"{path} has no effect here", reason, f"remove {path}")
        for path, reason in fields
    ]


def _elsewhere(config: ModelConfig) -> list[Finding]:
    return [
        Finding("hint", config.name, one.name, one.text, "it works here", "see docs/differences.md")
        for one in differences(config)
    ]


def _error(name: str, error: TritonError) -> Finding:
    field = getattr(error, "field", "") or "load"
    return Finding("error", name, field, error.message, "", error.hint)
