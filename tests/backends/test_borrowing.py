"""Which models get read-only arrays as they are, and which get copies."""

import textwrap
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nbtriton.backends.python.borrowing import borrows
from nbtriton.backends.python.imports import LocalModules
from nbtriton.backends.python.install import install_pb_utils
from tests.backends.borrowing_programs import bodies, check

HEAD = """
import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = ["a", "b"]
SEEN = []

def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)

def centred(z):
    return z[:, 1:-1]

def doubled_in_place(z):
    z *= 2
    return z

class TritonPythonModel:
    def initialize(self, args):
        self.scale = np.float32(3)
        self.kept = []

"""
EXECUTE = """
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
{body}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""


@pytest.fixture
def why(tmp_path):
    """Return why the model of a file, of which this is the class's body, gets copies."""
    install_pb_utils()
    opened = []

    def find(text):
        file = tmp_path / str(len(opened)) / "model.py"
        file.parent.mkdir()
        file.write_text(HEAD + text)
        modules = LocalModules(1, [file.parent])
        opened.append(modules)
        model = modules.load(file).TritonPythonModel()
        model.initialize({})
        return borrows(model.execute)

    yield find
    for modules in opened:
        modules.close()


def in_execute(body):
    return EXECUTE.format(body=textwrap.indent(textwrap.dedent(body).strip(), " " * 12))


READING = [
    "out = x",
    "out = x * 2 + self.scale",
    "out = -x[:, ::2].T.reshape(-1, 1)",
    "y = x * 2\ny += x\ny[0] = 1\ny[:, 0] = x[:, 0]\nout = y",
    "y = x.astype(np.float32)\ny[0, 0] = 1\ny /= 255\nout = y",
    "y = x.copy()\ny.sort()\nout = y",
    "out = np.zeros((4, 2), np.float32)\nfor i, row in enumerate(x):\n    out[i] = row",
    "out = np.stack([row / row.max() for row in x])",
    "rows = []\nfor row in x:\n    rows.append(row)\nout = np.concatenate(rows, axis=0)",
    "out = softmax(x)",
    "out = centred(x) if x.ndim > 1 else x",
    "a, *b = np.split(x, 2)\nout = a + b[0]",
    "out = np.where(x > 0, x, 0.0).clip(0, 1)",
    "out = np.asarray(x, dtype=np.float32)",
    "total = 0\nfor row in x:\n    total += row\nout = total",
    "best = None\nfor row in x:\n    if best is None or row.sum() > best.sum():\n        best = row\nout = best",
    "out = np.array([LABELS[int(i)] for i in x.argmax(axis=1)], dtype=object)",
    "named = {'x': x, 'y': x * 2}\nout = sum(value.sum() for value in named.values())\nout = np.array([out])",
    "print(x, len(x), f'{x.shape} {x[0]!r}')\nassert x.shape[0] > 0, 'empty'\nout = x",
    "texts = [text.decode('utf-8').upper() for text in x.ravel()]\nout = np.array(texts, dtype=object)",
    "facts = json.loads(x[0])\npicture = io.BytesIO(x[0]).read()\nout = np.frombuffer(picture, np.uint8)",
    "try:\n    out = x / x.sum()\nexcept ZeroDivisionError as error:\n    out = x * float(str(error) == '')",
    "while x.ndim > 2:\n    x = x[0]\nout = x",
    "with np.errstate(all='ignore'):\n    out = np.log(x)",
    "out = np.empty_like(x)\nout[:] = x",
    "out = np.array(x)\nout += 1",
    "import numpy\nout = numpy.flip(x, axis=0)",
    "self.kept.append(x.sum())\nself.last = float(x.max())\nout = x",
    "out = self.scaled(x)\n",
    "out = self.fixed(x, factor=2)\n",
    "given = {t.name(): t.as_numpy() for t in request.inputs()}\nout = given['IN']",
    "big = lambda row: row.sum() > 3\nout = x * big(x + 1)",
    "out = [np.max(r) for r in zip(x, x)]\nout = np.array(out)",
    "if (total := x.sum()) > 3:\n    out = x\nelse:\n    out = x * total",
    "out = x\ndel x",
    "out = np.add(x, 1, out=np.empty(x.shape))",
]
METHODS = """
    def scaled(self, z):
        return z * self.scale

    @staticmethod
    def fixed(z, factor):
        return z * factor
"""


@pytest.mark.parametrize("body", READING)
def test_a_model_that_only_reads_borrows(why, body):
    assert why(METHODS + in_execute(body)) == ""


WRITING = [
    ("x += 1\nout = x", "x is changed in place"),
    ("y = x\ny *= 2\nout = y", "y is changed in place"),
    ("x[0] = 1\nout = x", "x is written to"),
    ("x.T[0, 0] += 1\nout = x", "x.T[0, 0] is changed in place"),
    ("for row in x:\n    row -= row.mean()\nout = x", "row is changed in place"),
    ("rows = [x]\nrows[0][0] = 1\nout = x", "rows[0] is written to"),
    ("x.sort()\nout = x", "x.sort() is called"),
    ("x.fill(0)\nout = x", "x.fill() is called"),
    ("x.shape = (2, 2)\nout = x", "x.shape is assigned"),
    ("y = np.asarray(x, np.float32)\ny /= 255\nout = y", "y is changed in place"),
    ("y = x.astype(np.float32, copy=False)\ny /= 255\nout = y", "y is changed in place"),
    ("y = np.float32(x)\ny += 1\nout = y", "y is changed in place"),
    ("y = x.round()\ny += 1\nout = y", "y is changed in place"),
    ("y = np.reshape(x, -1)\ny[0] = 1\nout = y", "y is written to"),
    ("np.exp(x, out=x)\nout = x", "x is passed to np.exp"),
    ("np.exp(x, x)\nout = x", "x is passed to np.exp"),
    ("x.sum(0, None, x)\nout = x", "x is passed to x.sum"),
    ("np.copyto(x, 0)\nout = x", "x is passed to np.copyto"),
    ("np.nan_to_num(x, False)\nout = x", "np.nan_to_num(x, False) may work in place"),
    ("np.nan_to_num(x, copy=False)\nout = x", "np.nan_to_num(x, copy=False) may work in place"),
    ("np.median(x, overwrite_input=True)\nout = x", "may work in place"),
    ("out = doubled_in_place(x)", "z is changed in place"),
    ("out = x if x.flags.writeable else x + 1", "x.flags is used"),
    ("x.setflags(write=True)\nout = x", "x.setflags() is called"),
    ("out = x\nexec('x[0] = 1')", "exec is used"),
    ("out = locals()['x']", "locals is used"),
    ("setattr(x, 'shape', (4,))\nout = x", "setattr is used"),
    ("match x.ndim:\n    case 1:\n        out = x", "'match' is not followed"),
]
KEEPING = [
    ("self.last = x\nout = x", "an input is kept in self.last"),
    ("self.kept.append(x)\nout = x", "x is passed to self.kept.append"),
    ("self.kept += x\nout = x", "x is added to self.kept"),
    ("self.kept[0:0] = x\nout = x", "an input is kept in self.kept[0:0]"),
    ("SEEN.append(x)\nout = x", "x is passed to SEEN.append"),
    ("global LAST\nLAST = x\nout = x", "LAST is not a local variable"),
    ("rows = []\nself.kept = rows\nrows.append(x)\nout = x", "an input is kept in self.kept"),
    ("rows = [x]\nself.keep(rows)\nout = x", "an input is kept in self.rows"),
    ("self.last = pb_utils.Tensor('OUT', x)\nout = x", "an input is kept in self.last"),
    ("self.last = request\nout = x", "an input is kept in self.last"),
    ("self.all = requests\nout = x", "an input is kept in self.all"),
    ("self.later = lambda: x\nout = x", "x is used by an inner function"),
    ("self.rows = (row for row in x)\nout = x", "an input is kept in self.rows"),
    ("self.net = lambda y: y\nout = self.net(x)", "x is passed to self.net"),
    ("boxes = np.empty(1, object)\nboxes[0] = x\nout = x", "an input is kept in boxes[0]"),
    ("boxes = np.array([x, None], dtype=object)\nout = x", "may keep an array as an element"),
    ("raise ValueError(x)", "x is passed to ValueError"),
    (
        "import threading\nthreading.Thread(target=print, args=(x,)).start()\nout = x",
        "is passed to",
    ),
    ("import torch\nout = torch.from_numpy(x).numpy()", "x is passed to torch.from_numpy"),
    ("out = sorted(x, key=self.kept.append)", "x is passed to sorted"),
    ("list(map(self.kept.append, x))\nout = x", "x is passed to map"),
    ("view = memoryview(x)\nout = x", "x is passed to memoryview"),
    ("sender = request.get_response_sender()\nout = x", "get_response_sender() is called"),
    ("def inner():\n    return x\nout = inner()", "x is used by an inner function"),
    ("out = np.apply_along_axis(self.kept.append, 0, x)", "x is passed to np.apply_along_axis"),
    ("n = x.argmax()\nn *= [x]\nself.kept = n\nout = x", "[x] is added to n"),
    ("rows = self.kept * 1\nrows += x\nout = x", "x is added to rows"),
]


@pytest.mark.parametrize(("body", "reason"), WRITING + KEEPING)
def test_a_model_that_may_write_or_keep_does_not(why, body, reason):
    keep = "    def keep(self, rows):\n        self.rows = rows\n"
    found = why(keep + in_execute(body))
    assert reason in found
    assert found.startswith("model.py line ")


def test_the_reason_tells_the_line(why):
    text = in_execute("y = x * 2\ny += 1\nx += 1\nout = y")
    line = (HEAD + text).splitlines().index("            x += 1") + 1
    assert why(text) == f"model.py line {line}: x is changed in place"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("    def execute(self, requests):\n        yield None\n", "execute is a generator"),
        ("    execute = print\n", "execute is not a method of the model's class"),
        (
            "    def __getattribute__(self, name):\n        return object.__getattribute__(self, name)\n"
            + in_execute("out = x"),
            "__getattribute__ of its own",
        ),
        (
            "    async def half(self, z):\n        return z\n"
            + in_execute("self.kept = self.half(x)\nout = x"),
            "x is passed to self.half",
        ),
        (
            "    def halves(self, z):\n        yield z\n"
            + in_execute("self.kept = self.halves(x)\nout = x"),
            "x is passed to self.halves",
        ),
    ],
)
def test_other_forms_are_not_followed(why, text, reason):
    assert reason in why(text)


def test_what_a_name_stands_for_counts_and_not_how_it_is_called(why):
    assert why("    from numpy import exp as made\n" + in_execute("out = self.made(x)")) != ""
    text = in_execute("np = self.kept\nout = np.append(x)")
    assert "x is passed to np.append" in why(text)
    text = in_execute("out = len(x)").replace("class", "class").replace("len(x)", "print(len(x))")
    assert why(text) == ""


def test_an_asynchronous_model_borrows_across_awaits(why):
    text = "    async def half(self, z):\n        return z / 2\n" + in_execute(
        "out = await self.half(x)"
    ).replace("def execute", "async def execute")
    assert why(text) == ""


def test_calls_to_other_models_borrow_while_they_are_waited_for(why):
    call = (
        "tensor = pb_utils.get_input_tensor_by_name(request, 'IN')\n"
        "inner = pb_utils.InferenceRequest(inputs=[tensor], requested_output_names=['OUT'], "
        "model_name='other')\n"
        "answer = inner.{call}\n"
        "out = x\n"
    )
    assert why(in_execute(call.format(call="exec()"))) == ""
    assert "exec() is called" in why(in_execute(call.format(call="exec(decoupled=True)")))
    assert "async_exec() is called" in why(in_execute(call.format(call="async_exec()")))


def test_a_file_that_was_edited_since_it_was_imported_is_not_believed(tmp_path):
    install_pb_utils()
    file = tmp_path / "model.py"
    file.write_text(HEAD + in_execute("x += 1\nout = x"))
    modules = LocalModules(1, [tmp_path])
    model = modules.load(file).TritonPythonModel()
    file.write_text(HEAD + in_execute("x = 1\nout = x"))
    assert borrows(model.execute) == "the source of execute is not known"
    modules.close()


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies())
def test_what_is_believed_to_borrow_answers_as_with_copies(tmp_path_factory, body):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(body, tmp_path_factory.mktemp("program"))
