"""What a model of the notebook takes along to a worker process, and what it cannot."""

import io
import linecache
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from nbtriton.common.errors import UnsupportedError
from nbtriton.runtime.workers import carry

FILE = "/tmp/ipykernel_1/cell.py"


@pytest.fixture
def notebook():
    """Run cells in a namespace like a notebook's; later cells see earlier ones."""
    namespace = {"__name__": "__main__"}
    numbers = iter(range(1, 100))
    names = []

    def run(text):
        text = textwrap.dedent(text)
        name = FILE.replace("cell", str(next(numbers)))
        names.append(name)
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), namespace)
        return namespace

    yield run
    for name in names:
        linecache.cache.pop(name, None)


def elsewhere(packed, expression, folder):
    """Evaluate an expression of `model` in another process, which starts in another folder."""
    program = (
        "import sys, traceback; from nbtriton.runtime.workers.carry import unpack\n"
        "model = unpack(sys.stdin.buffer.read())\n"
        f"try:\n    print({expression})\nexcept Exception:\n    traceback.print_exc()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        input=packed,
        capture_output=True,
        cwd=folder,
        timeout=120,
    )
    return done.stdout.decode().strip(), done.stderr.decode()


@pytest.mark.medium
def test_a_cell_s_function_takes_what_it_uses_of_the_notebook(notebook, tmp_path, monkeypatch):
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "beside.py").write_text("def triple(x):\n    return 3 * x\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    cells = notebook("""
        import functools
        import numpy as np
        from beside import triple
        weights = np.arange(3)
        class Scale:
            def __init__(self, by):
                self.by = by
            def __call__(self, x):
                return x * self.by
        scale = Scale(10)
        @functools.cache
        def table(size):
            return np.ones(size, int)
        unused = open("beside.py")
        """)
    cells |= notebook("""
        def model(x):
            return triple(scale(x * weights + table(3)))
        """)
    told, errors = elsewhere(carry.pack(cells["model"]), "model(1).tolist()", tmp_path)
    assert told == "[30, 60, 90]", errors
    cells["unused"].close()


def test_a_notebook_whose_folder_was_deleted_has_workers_too(notebook, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    cells = notebook("def model(x):\n    return 2 * x")
    told, errors = elsewhere(carry.pack(cells["model"]), "model(1)", tmp_path)
    assert told == "2", errors


def test_an_error_in_a_cell_s_code_shows_the_line_of_the_cell(notebook, tmp_path):
    cells = notebook("""
        class Model:
            def execute(self, requests):
                return 1 / 0  # the line to see
        """)
    told, errors = elsewhere(carry.pack(cells["Model"]), "model().execute([])", tmp_path)
    assert not told
    assert 'ipykernel_1/1.py", line 4, in execute' in errors
    assert "return 1 / 0  # the line to see" in errors


def test_a_class_of_the_notebook_stays_one_class(notebook):
    cells = notebook("""
        class Base:
            pass
        class Model(Base):
            def execute(self, other):
                return isinstance(other, Base) and super().__init__() is None
        """)
    model = carry.unpack(carry.pack(cells["Model"]))
    assert model().execute(model())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("thing = open('/dev/null')", "it is an open file"),
        ("thing = threading.Lock()", "it is a lock"),
        ("thing = threading.Event()", "it is a lock"),
        ("thing = {'inside': threading.RLock()}", "it holds a lock"),
        ("thing = socket.socket()", "it is a socket"),
        ("thing = (i for i in range(3))", "it is a generator"),
        ("thing = nbtriton.Server()", "it is a server of this process"),
        ("thing = sys._getframe()", "TypeError: cannot pickle 'frame' object"),
    ],
)
def test_what_lives_in_this_process_alone_is_refused_with_the_line_that_uses_it(
    notebook, line, kind
):
    cells = notebook(f"import nbtriton, socket, sys, threading\n{line}")
    notebook("""
        def helper(x):
            first = x
            return first, thing
        """)
    cells = notebook("""
        class TritonPythonModel:
            def execute(self, requests):
                return helper(requests)
        """)
    with pytest.raises(UnsupportedError) as caught:
        carry.pack(cells["TritonPythonModel"])
    message = caught.value.message
    assert message.startswith(f"'thing' cannot go to a worker process: {kind}")
    assert message.endswith('ipykernel_1/2.py", line 4')
    assert caught.value.hint
    if hasattr(thing := cells["thing"], "close"):
        thing.close()


def test_an_attribute_of_the_class_is_named_with_the_class(notebook):
    cells = notebook("""
        import threading
        class Model:
            x = 1
            lock = threading.Lock()
            def execute(self, requests):
                return self.lock
        """)
    with pytest.raises(UnsupportedError) as caught:
        carry.pack(cells["Model"])
    assert "'Model.lock' cannot go to a worker process: it is a lock" in caught.value.message


def test_variables_around_an_inner_function_and_defaults_are_found(notebook):
    cells = notebook("""
        import threading
        def make(lock):
            def model(x):
                return lock
            return model
        first = make(threading.Lock())
        def second(x, lock=threading.Lock()):
            return lock
        """)
    for name, what in (("first", "'lock'"), ("second", "'a default of second'")):
        with pytest.raises(UnsupportedError, match=f"^{what} cannot go to a worker process"):
            carry.pack(cells[name])


def test_text_and_bytes_in_memory_are_data():
    kept = carry.unpack(carry.pack({"text": io.StringIO("a"), "bytes": io.BytesIO(b"b")}))
    assert (kept["text"].getvalue(), kept["bytes"].getvalue()) == ("a", b"b")


def test_an_object_is_named_by_its_kind():
    with pytest.raises(UnsupportedError, match="'SimpleQueue' cannot go to a worker process"):
        carry.pack(__import__("queue").SimpleQueue())


def test_a_torch_module_keeps_its_weights():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    again = carry.unpack(carry.pack(layer))
    x = torch.ones(1, 3)
    np.testing.assert_array_equal(again(x).detach().numpy(), layer(x).detach().numpy())


def test_another_minor_version_of_python_is_refused(notebook):
    cells = notebook("def model(x):\n    return x")
    version, *rest = pickle.loads(carry.pack(cells["model"]))
    other = pickle.dumps(((version[0], version[1] + 1), *rest))
    with pytest.raises(UnsupportedError, match=r"cannot run in Python 3\.\d+"):
        carry.unpack(other)


def test_a_thread_is_refused():
    with pytest.raises(UnsupportedError, match="it is a thread"):
        carry.pack(threading.current_thread())
