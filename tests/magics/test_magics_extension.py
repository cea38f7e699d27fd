"""Loading and unloading the extension, help, completion."""

from __future__ import annotations

import sys
import threading
from argparse import SUPPRESS
from contextlib import suppress
from pathlib import Path

import pytest

from nbtriton.magics import magic_methods
from nbtriton.runtime.workers.launching import end_idle_servers
from nbtriton.serving.server import server
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.watch import WatchView
from tests.children import run_python
from tests.magics.cells import DOUBLE
from tests.magics.conftest import Notebook
from tests.until import until
from tests.workers.support import is_alive, workers

MAGICS = {
    "cell": {"triton_model", "triton_config", "triton_ensemble"},
    "line": {
        "triton_infer", "triton_status", "triton_dag", "triton_watch", "triton_perf",
        "triton_unload", "triton_server", "triton_events", "triton_copies", "triton_why", "triton_timeline", "triton_doctor",
        "triton_check", "triton_figure",
    },
}  # fmt: skip


@pytest.mark.medium
def test_loading_is_silent_and_imports_nothing_heavy():
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config(); config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
shell.run_cell("%load_ext nbtriton")
import triton_python_backend_utils
for name in ("torch", "pandas", "anywidget", "ipywidgets", "matplotlib", "grpc", "cupy"):
    assert name not in sys.modules, name
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.medium
def test_unloading_leaves_nothing_behind(plain_shell):
    notebook = Notebook(plain_shell)
    before = _traces(plain_shell)
    threads = set(threading.enumerate())
    for _ in range(2):
        notebook.ok("%load_ext nbtriton")
        for kind, names in MAGICS.items():
            assert names <= set(plain_shell.magics_manager.magics[kind])
        notebook.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}")
        notebook.ok("%triton_infer double IN=[[1, 2, 3, 4]]")
        notebook.ok("watch = %triton_watch")
        notebook.ok("graph = %triton_dag double --live")
        assert notebook.complete("%triton_perf dou") == ["double"]
        notebook.ok("%unload_ext nbtriton")
        assert _traces(plain_shell) == before
        # Unloading waits a second for them.
        assert until(lambda: set(threading.enumerate()) <= threads), threading.enumerate()
        assert "triton_python_backend_utils" not in sys.modules
    assert "not found" in notebook("%triton_status").err


def _traces(shell) -> tuple:
    formatter = shell.display_formatter.mimebundle_formatter
    hooks = shell.strdispatchers.get("complete_command")
    ours = {"DefineMagics", "AskMagics", "MeasureMagics", "RepositoryMagics"}
    return (
        {kind: set(names) for kind, names in shell.magics_manager.magics.items()},
        {name for name in shell.magics_manager.registry if name in ours},
        set(formatter.deferred_printers),
        set(shell.display_formatter.ipython_display_formatter.deferred_printers),
        set(shell.display_formatter.ipython_display_formatter.type_printers),
        {kind.__name__ for kind in formatter.type_printers},
        {key for key in hooks.strs if "triton" in key} if hooks else set(),
        {key.pattern for key in hooks.regexs if "triton" in key.pattern} if hooks else set(),
        len(shell.Completer.custom_matchers),
    )


def test_reloading_keeps_the_server_and_its_models(doubled):
    doubled.ok("server = nt.server()\nclient = %triton_serve --http-port 0 --metrics-port none")
    doubled.ok("%%triton_config double\ndynamic_batching { }\n")
    watch = doubled.ok("%triton_watch").value
    doubled.ok("%reload_ext nbtriton")
    assert server() is doubled.names["server"]
    answer = doubled.ok("%triton_infer double IN=[[1, 2, 3, 4]]").value
    assert answer["OUT"].tolist() == [[2, 4, 6, 8]]
    assert doubled.names["client"].http_port
    ran = doubled.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}")
    assert "had set: dynamic_batching" in ran.out
    assert "neither PORT" in doubled("%triton_serve --http-port 70000").text
    assert doubled.names["client"].http_port, "the ports that were open stay so"
    doubled.ok("%triton_serve --stop")
    assert doubled.names["client"].http_port is None
    watch.stop()
    doubled.ok("%unload_ext nbtriton")
    assert "closed" in repr(doubled.names["server"])
    doubled.ok("%load_ext nbtriton")
    assert server() is not doubled.names["server"]


COUNTING = """
import os
import numpy as np

calls = []

def execute(IN: "INT64[1]") -> {"OUT": "INT64[2]"}:
    calls.append(IN)
    return {"OUT": np.array([os.getpid(), len(calls)])}
"""


@pytest.mark.medium
def test_reloading_keeps_processes_and_unloading_ends_them(plain_shell):
    notebook = Notebook(plain_shell)
    end_idle_servers()
    others, threads, files = {*workers()}, {*threading.enumerate()}, _opened()
    notebook.ok("%load_ext nbtriton")
    notebook.ok(f"%%triton_model counting --isolation process --instances 1\n{COUNTING}")
    ask = "%triton_infer counting IN=[1]"
    started, _ = notebook.ok(ask).value["OUT"].tolist()
    assert started in {*workers()} - others
    notebook.ok("%reload_ext nbtriton")
    assert notebook.ok(ask).value["OUT"].tolist() == [started, 2]
    notebook.ok("%unload_ext nbtriton")
    assert until(lambda: not is_alive(started))
    assert until(lambda: {*workers()} <= others)
    left = {*threading.enumerate()} - threads
    assert until(lambda: not [one.name for one in left if one.is_alive()]), left
    assert until(lambda: _opened() <= files), _opened() - files


def _opened() -> set[str]:
    """The sockets, pipes and segments of this process."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    maps = Path("/proc/self/maps").read_text().split()
    return {one for one in found if ":[" in one} | {one for one in maps if "memfd:nbtriton" in one}


@pytest.mark.parametrize("name", sorted(MAGICS["cell"] | MAGICS["line"]))
def test_help_starts_with_the_usage_and_one_sentence(notebook, name):
    shell = notebook.shell
    method = shell.find_magic(name, "cell") or shell.find_magic(name, "line")
    # `%name?` shows the docstring: usage, a sentence, examples, options.
    first = method.parser.description.strip().splitlines()[0]
    assert first.endswith(".")
    assert f"triton_{name.removeprefix('triton_')}" in method.__doc__
    assert first.split(";")[0] in method.__doc__
    assert len(examples(method)) >= 2


@pytest.mark.parametrize("name", sorted(MAGICS["cell"]))
def test_the_usage_is_written_as_it_is_typed(notebook, name):
    assert notebook.shell.find_magic(name, "cell").__doc__.split()[1] == f"%%{name}"


@pytest.mark.parametrize(("name", "method"), sorted(magic_methods().items()))
def test_every_option_says_what_it_does_and_what_holds_without_it(name, method):
    for action in method.parser._actions:
        assert action.help, action.option_strings
        default = action.default
        if default and default != SUPPRESS and action.nargs != 0:
            value = f"{default:g}" if isinstance(default, float) else str(default)
            assert f"({value})" in action.help or "by default" in action.help, action.option_strings


@pytest.mark.slow
def test_the_examples_in_the_help_run_as_they_stand(notebook):
    shell = notebook.shell
    for name in ("triton_model", "triton_config", "triton_ensemble"):
        for cell in examples(shell.find_magic(name, "cell")):
            notebook.ok(cell)
    # The measured model waits, in place of as many requests as a processor can do.
    waits = DOUBLE.replace("return", "time.sleep(0.005)\n    return")
    notebook.ok(f"%%triton_model double --max-batch-size 8\nimport time\n{waits}")
    with server().serve(http_port=None, grpc_port=0, metrics_port=None) as endpoints:
        for name in (
            "triton_infer", "triton_status", "triton_dag", "triton_watch", "triton_perf",
            "triton_server", "triton_events", "triton_copies", "triton_why", "triton_timeline",
            "triton_doctor",
        ):  # fmt: skip
            for cell in examples(shell.find_magic(name, "line")):
                # The machine that the help speaks of is this one.
                notebook.ok(cell.replace("gpu-box:8001", f"127.0.0.1:{endpoints.grpc_port}"))
    for cell in examples(shell.find_magic("triton_unload", "line")):
        # The second unloads what the first one did: it is loaded again.
        notebook.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}")
        notebook.ok(cell)


def examples(method) -> list[str]:
    """The cells of a magic's help: line magics a line each, cell magics up to the next ``%%``."""
    block = method.parser.description.partition("::\n")[2]
    lines = [line.removeprefix(" " * 12) for line in block.splitlines()]
    if not any(line.startswith("%%") for line in lines):
        return [line for line in lines if "%" in line]
    cells: list[list[str]] = []
    for line in lines:
        if line.startswith("%%"):
            cells.append([])
        if cells:
            cells[-1].append(line)
    return ["\n".join(cell).strip() + "\n" for cell in cells]


@pytest.mark.slow
def test_options_are_completed(notebook):
    for magic in ("%triton_perf", "%%triton_model"):
        assert "--max-batch-size" in notebook.complete(f"{magic} m --max")
        assert "--max-batch-size" in notebook.complete(f"{magic} m --")
    assert "--dynamic-batching" in notebook.complete("%%triton_model m --dyn", "\n" + DOUBLE)
    assert set(notebook.complete("%%triton_model m --kind ")) >= {"cpu", "gpu", "auto"}
    assert set(notebook.complete("%triton_perf m --dynamic-batching ")) >= {"on", "off", "off,on"}
    assert notebook.complete("%triton_perf m --cache of")[:1] == ["off"]
    assert "--concurrency" in notebook.complete("report = %triton_perf m --con")


def test_model_and_tensor_names_are_completed(doubled):
    assert "double" in doubled.complete("%triton_infer d")
    assert "double" in doubled.complete("%triton_watch d")
    assert "double" in doubled.complete("%%triton_config d", "\nmax_batch_size: 1")
    assert doubled.complete("%triton_infer double I")[0] == "IN="
    assert doubled.complete("%triton_infer nowhere I") != ["IN="]


def test_completing_the_name_of_a_magic_prints_nothing(doubled, capsys):
    doubled.complete("%triton_infer")
    doubled.complete("%triton_in", "fer double")
    assert capsys.readouterr() == ("", "")


def test_the_lines_of_an_ensemble_are_completed(notebook):
    notebook.ok(f"%%triton_model stage\n{DOUBLE}")
    head = "%%triton_ensemble twice\n"
    assert notebook.complete(f"{head}half = sta") == ["stage"]
    assert notebook.complete(f"{head}half = stage(I") == ["IN="]
    assert notebook.complete(f"{head}half = stage(IN=IN)\nOUT = st") == ["stage"]
    assert "stage" not in notebook.complete("half = sta")
    assert "stage" not in notebook.complete("%%triton_model twice\nhalf = sta")


def test_what_a_page_says_calls_no_hooks_of_a_cell(doubled):
    """They would run beside the cell that runs: matplotlib shows and closes its figures in them."""
    called, said = [], []

    def begun():
        called.append("pre_execute")

    def ended():
        called.append("post_execute")

    watch = WatchView(server(), on_hub=Hub(threaded=False))
    watch.on_msg(lambda _widget, content, _buffers: said.append(content))
    doubled.shell.events.register("pre_execute", begun)
    doubled.shell.events.register("post_execute", ended)
    content = {"kind": "here", "view": "page"}
    data = {"method": "custom", "content": content}
    watch.comm.handle_msg({"content": {"data": data}, "buffers": []})
    assert said == [content]
    assert called == []
    watch.close()
