"""The magics that define: a model, its configuration, an ensemble; and the one that unloads."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.common import entries
from nbtriton.magics import cells
from nbtriton.magics.ask import check_known
from nbtriton.magics.common import arguments, evaluate, magic, parse, read_config, say
from nbtriton.model.config import (
    EXECUTION_ENV_PATH,
    ModelConfig,
    amend,
    apply_options,
    as_config,
    is_whole,
    looks_like_pbtxt,
    parse_pbtxt,
)
from nbtriton.model.config.dataflow import called_models, parse_dataflow
from nbtriton.options.blocks import SCHEDULING
from nbtriton.options.reading import name_list, unquoted
from nbtriton.options.table import Option
from nbtriton.runtime.engine import ModelHandle
from nbtriton.serving.server import Server, server

_CONFIGURED = (*(one.parameter for one in SCHEDULING), "read_only_inputs", "resources", "sharing")
_MODEL = (
    Option(
        "--config", "pbtxt under these options: a file, a variable, an expression, or the text in quotes", "FILE|EXPR|TEXT"),
    Option("--class", "the class or function that is the model, where the cell defines several", "NAME", name="chosen"),
    Option("--version", "by default the highest, or 1", "N", int),
    Option("--env", "run the cell as a model.py in an environment of its own, of %%triton_env, or packed", "NAME|PATH"),
    Option(
        "--resources", "with --isolation ray: what each instance takes of its node, such as CPU=2,GPU=1 (CPU=1)",
        "NAME=AMOUNT,…"),
    Option("--sharing", "with --isolation ray: how many instances share an actor, and its model object (1)", "N", int),
    Option(
        "--read-only-inputs", "the model only reads its inputs: it gets them without a copy, numpy's read-only",
        action="store_true"),
    Option("--example", "a sample batch, from which a torch module's tensors are learnt", "EXPR"),
)  # fmt: skip
_ENSEMBLE = (
    Option("--output", "tensors that are outputs although a line uses them", "NAMES", name_list, [], action="extend"),
    Option("--max-batch-size", "by default the smallest of the steps'", "N", int),
)  # fmt: skip
# A model has one of them.
_SCHEDULERS = {"dynamic_batching", "sequence_batching", "ensemble_scheduling"}


@magics_class
class DefineMagics(Magics):
    """``%%triton_model``, ``%%triton_config``, ``%%triton_ensemble``, ``%triton_unload``."""

    # What `%%triton_config` has changed since the model's own cell ran, by model. On the class,
    # because `%reload_ext` makes another instance.
    _configured: ClassVar[WeakKeyDictionary[Server, dict[str, set[str]]]] = WeakKeyDictionary()

    @magic(cell_magic)
    @argument("name", type=unquoted, help="the model's name")
    @arguments(SCHEDULING, _MODEL)
    def triton_model(self, options: Namespace, cell: str) -> Any:
        """Load the model that this cell defines; running the cell again replaces it without losing a request.

        The cell holds one model: Triton's ``class TritonPythonModel``, a ``torch.nn.Module``
        subclass, or one function with annotated tensors; of several torch modules the last one
        counts. Everything else works as in any cell. Changes by ``%%triton_config`` since the cell
        last ran are dropped, and named::

            %%triton_model double --max-batch-size 8 --dynamic-batching
            def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
                return {"OUT": IN * 2}

            %%triton_model upper
            import numpy as np
            import triton_python_backend_utils as pb_utils

            class TritonPythonModel:
                @staticmethod
                def auto_complete_config(config):
                    config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
                    config.add_output({"name": "UPPER", "data_type": "TYPE_STRING", "dims": [1]})
                    return config

                def execute(self, requests):
                    texts = [pb_utils.get_input_tensor_by_name(r, "TEXT") for r in requests]
                    upper = [np.char.upper(t.as_numpy().astype("S")).astype(object) for t in texts]
                    return [
                        pb_utils.InferenceResponse([pb_utils.Tensor("UPPER", u)]) for u in upper
                    ]
        """
        config = (
            ModelConfig() if options.config is None else read_config(self.shell, options.config)
        )
        config = apply_options(config, **{name: getattr(options, name) for name in _CONFIGURED})
        if options.env is not None:
            return self._load_apart(options, config, cell)
        defined = cells.run_body(self.shell, f"%%triton_model {options.line}", cell)
        model = cells.find_model(options.name, defined, cell, chosen=options.chosen)
        if options.chosen is None and len(others := cells.torch_modules(defined)) > 1:
            names = ", ".join(cls.__name__ for cls in others[:-1])
            say(
                f"{options.name}: the model is {others[-1].__name__}, the last torch module of the "
                f"cell after {names}; --class NAME chooses another one."
            )
        text = options.example
        example = None if text is None else evaluate(self.shell, text, "--example ")
        handle = _load(config, model, name=options.name, version=options.version, example=example)
        self._drop_configured(options.name)
        return handle

    def _load_apart(self, options: Namespace, config: ModelConfig, cell: str) -> ModelHandle:
        """Load a cell that does not run in the notebook: the model.py of an environment."""
        for option in ("chosen", "example"):
            if getattr(options, option) is not None:
                name = "class" if option == "chosen" else option
                raise UsageError(f"--{name} is of a cell that runs in the notebook, not with --env")
        config = apply_options(config, environment=cells.environment_folder(options.env))
        version = options.version or 1
        place = Path(config.parameters[EXECUTION_ENV_PATH].string_value)
        if place.is_file():
            say(f"{options.name}: unpacking {place}, once for this server")
        file = cells.CellFile(
            self.shell, options.name, version, f"%%triton_model {options.line}", cell
        )
        try:
            handle = _load(config, file.path, name=options.name, version=options.version)
        except BaseException:
            file.remove()
            raise
        file.keep()
        self._drop_configured(options.name)
        return handle

    def _drop_configured(self, name: str) -> None:
        dropped = self._configured.get(server(), {}).pop(name, set())
        if dropped:
            say(
                f"{name}: this cell replaces what %%triton_config had set: "
                f"{', '.join(sorted(dropped))}. Run that cell again to have it back."
            )

    @magic(cell_magic)
    @argument("name", type=unquoted, help="a model that is loaded")
    def triton_config(self, options: Namespace, cell: str) -> Any:
        """Change the configuration of a loaded model by this cell's config.pbtxt text.

        It applies to all versions. If the version policy unloads a version of a repository, a later
        policy brings it back; a version of a cell loses its code, and the cell has to run again.

        A fragment changes the fields that it names and keeps the rest; lists are replaced as a
        whole. A text with a name, platform or backend, or with input and output, is a whole
        configuration and replaces everything; fields that are no longer set are named. Both may
        also be JSON.

        The text is checked first; the model's code stays, and requests in flight are finished. If
        only instance_group or version_policy change, the model keeps running: instances are added
        or removed, and the others keep their state and the statistics.

        Where stand-ins are on (``%triton_server --stand-in on``), a name that no model has is loaded as one::

            %%triton_config double
            max_batch_size: 16
            dynamic_batching { max_queue_delay_microseconds: 500 }

            %%triton_config double
            instance_group [ { count: 2, kind: KIND_CPU } ]
        """
        known = server().engine.inspection.model_names()
        if server().options.stand_in and options.name not in known:
            with cells.in_cell(cell) as text:
                config = amend(ModelConfig(), text, source=cells.cell_name(self.shell))
            return _load(config, name=options.name)
        check_known(options.name)
        before = server().engine.inspection.user_config(options.name)
        with cells.in_cell(cell) as text:
            config = amend(before, text, source=cells.cell_name(self.shell))
        named = {field.name for field, _ in as_config(text).ListFields()}
        handle = _reload(config, options.name, named)
        unset = {field.name for field, _ in before.ListFields()}
        unset -= {field.name for field, _ in config.ListFields()} | {"name"}
        why = "this is a whole configuration"
        if not is_whole(as_config(text)):
            unset &= _SCHEDULERS  # the others were set to 0 or to an empty value
            why = "this scheduler takes its place"
        if unset:
            say(f"{options.name}: no longer set, as {why}: {', '.join(sorted(unset))}")
        configured = self._configured.setdefault(server(), {})
        configured.setdefault(options.name, set()).update(_differing(before, config))
        return handle

    @magic(cell_magic)
    @argument("name", type=unquoted, help="the ensemble's name")
    @arguments(_ENSEMBLE)
    def triton_ensemble(self, options: Namespace, cell: str) -> Any:
        """Load an ensemble: loaded models, chained.

        The cell is config.pbtxt text, or one line per step: a name that no line assigns is an input
        of the ensemble, and a name that no line uses is an output. A line may name a ready step
        (``%triton_step``), which is loaded if no model has its name::

            %%triton_ensemble four_times
            half = double(IN=IN)
            OUT = double(IN=half)

            %%triton_ensemble four_times
            max_batch_size: 8
            input [ { name: "IN", data_type: TYPE_FP32, dims: [ 4 ] } ]
            output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 4 ] } ]
            ensemble_scheduling { step [
              { model_name: "double", model_version: -1
                input_map { key: "IN", value: "IN" } output_map { key: "OUT", value: "x" } },
              { model_name: "double", model_version: -1
                input_map { key: "IN", value: "x" } output_map { key: "OUT", value: "OUT" } }
            ] }
        """
        with cells.in_cell(cell) as text:
            if looks_like_pbtxt(text):
                config = parse_pbtxt(text, source=cells.cell_name(self.shell))
                if not config.platform:
                    config.platform = "ensemble"
            else:
                _load_named(called_models(text))
                loaded = [model.name for model in server().models() if model.state == "READY"]
                config = parse_dataflow(
                    text,
                    name=options.name,
                    models={name: server().config(name) for name in loaded},
                    outputs=options.output,
                    steps=[name for _, source in entries.working("models") for name in source],
                )
        config = apply_options(config, max_batch_size=options.max_batch_size)
        return _load(config, name=options.name)

    @magic_arguments()
    @argument("names", type=unquoted, nargs="+", metavar="NAME", help="models that are loaded")
    @argument(
        "--dependents",
        action="store_true",
        help="of an ensemble: its composing models too, unless another ensemble uses them",
    )
    @line_magic
    def triton_unload(self, line: str) -> None:
        """Unload models; requests that they accepted are finished.

        Examples::

            %triton_unload double
            %triton_unload --dependents four_times
        """
        options = parse(self.triton_unload, line)
        for name in options.names:
            check_known(name)
        for name in options.names:
            server().unload(name, options.dependents)


def _load(config: ModelConfig, model: object = None, *, name: str, **options: Any) -> ModelHandle:
    """Load a model, and print the remarks on its configuration under the cell."""
    _, remarks = server().engine.lifecycle.load(config, model, name=name, **options)
    for _, text in remarks:
        say(f"{name}: {text}")
    return ModelHandle(server(), name)


def _load_named(names: Iterable[str]) -> None:
    """Load the models that are not loaded and that an extension has under these names; say so."""
    missing = [name for name in names if name not in server().engine.inspection.model_names()]
    sources = [source for _, source in entries.working("models")] if missing else []
    for name in missing:
        source = next((one for one in sources if name in one), None)
        if source is not None:
            _load(ModelConfig(), source[name], name=name)
            say(f"{name}: no model had this name, so it is the ready step: {source[name]}")


def _reload(config: ModelConfig, name: str, named: Collection[str]) -> ModelHandle:
    """Load the versions of a model with another configuration, and name those that are missing.

    Remarks on fields without effect are printed if they are new, or about fields that the cell has `named`.
    """
    engine = server().engine
    before = engine.registry.entry(name)
    control = server().control_of(name)
    if control is not None:
        control.reconfigure(name, config)
    else:
        engine.lifecycle.load(config, name=name)
    known = {path for path, _ in before.ignored}
    for about, text in engine.lifecycle.remarks(name, before):
        if about not in known or re.split(r"[.\[]", about)[0] in named:
            say(f"{name}: {text}")
    for version in engine.inspection.missing_versions(name) if control is None else ():
        say(
            f"{name}: the version policy wants version {version} too, which is not loaded any more: "
            "run its cell again"
        )
    return ModelHandle(server(), name)


def _differing(before: ModelConfig, after: ModelConfig) -> set[str]:
    """Return the names of the fields in which two configurations differ."""
    old, new = ({field.name: value for field, value in c.ListFields()} for c in (before, after))
    return {name for name in (old.keys() | new.keys()) - {"name"} if old.get(name) != new.get(name)}
