"""Random bodies of models, run with copies and with the caller's own read-only arrays.

``python -m tests.backends.borrowing_programs 20000`` runs that many; the tests run some hundreds.
Wherever a body is believed to borrow, the answers must be the same as with copies, also those to a
second request for which the caller has reused its memory, and nothing may have tried to write.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbtriton.backends.python.imports import LocalModules
from nbtriton.backends.python.install import install_pb_utils
from nbtriton.backends.python.instance import PythonInstance
from nbtriton.backends.python.running import Running
from nbtriton.errors import ModelError
from tests.backends.fakes import Request, Timer

__all__ = ["bodies", "check"]

NAMES = ("a", "b", "c", "d", "x")
EXPRESSIONS = """
{v}
{v}
x
x
x * 2
{v}[0]
{v}[-1]
{v}[:, 1:]
{v}[x > 1]
{v}.T
{v}.real
-{v}
{v} + {w}
{v} * 2
[{v}] + [{w}]
[{v}] * 2
np.asarray({v})
np.array({v})
np.array([{v}, {w}])
np.array([{v}, 1], dtype=object)
np.array({v}, copy=None)
np.asarray({v}, dtype=np.float32)
np.ascontiguousarray({v})
np.atleast_2d({v})
np.float32({v})
np.exp({v})
np.maximum({v}, {w})
np.add({v}, 1, {w})
np.add({v}, 1, out={w})
np.sum({v}, axis=0)
np.concatenate([{v}, {w}])
np.stack([{v}, {v}])
np.split({v}, 1)[0]
np.split({v}, 2)
np.broadcast_to({v}, np.shape({v}))
np.squeeze({v})
np.expand_dims({v}, 0)[0]
np.round({v})
np.diff({v}, n=0)
np.flip({v})
np.einsum('ij->ij', {v})
np.where({v}, {w}, {v})
np.clip({v}, 0, 1)
np.zeros_like({v})
np.zeros(np.shape({v}))
np.zeros(2, dtype=object)
np.zeros((2, 3), np.float32)
np.nan_to_num({v}, copy=False)
np.nan_to_num({v})
np.median({v}, overwrite_input=True)
np.median({v})
np.sort({v})
np.take({v}, [0, 1])
np.apply_along_axis(helper, 0, {v})
{v}.astype(np.float32)
{v}.astype(np.float32, copy=False)
{v}.astype(object)
{v}.copy()
{v}.reshape(-1)
{v}.reshape(2, -1)
{v}.ravel()
{v}.flatten()
{v}.view()
{v}.round()
{v}.conj()
{v}.clip(0, 1)
{v}.sum(axis=0)
{v}.max()
{v}.tolist()
{v}.flat
{v}.base
{v}.flags.writeable
{v}.shape
list({v})
tuple({v})
sorted({v}, key=np.sum)
sorted({v})
reversed({v})
iter({v})
next(iter({v}))
next(iter([]), {v})
list(zip({v}, {w}))
list(enumerate({v}))
max({v}, {w}, key=np.sum)
min([{v}, {w}], key=np.sum)
sum({v})
sum([{v}, {w}])
dict(k={v})
dict([('k', {v})])
{{'k': {v}, **{w}}}
{{'k': {v}}}
{v}['k']
{v}.get('k', {w})
{v}.setdefault('k', {w})
{v}.pop()
{v}.popitem()
list({v}.values())
list({v}.items())
[{v}, {w}]
[*{v}, {w}]
({v}, {w})
[r for r in {v}]
[r * 2 for r in {v}]
[s for r in {v} for s in r][:9]
{{'k': r for r in {v}}}
{v} if np.sum({w}) > 1 else {w}
{v} or {w}
({v} := {w})
self.kept
self.bag
self.pick({v}, {w})
self.pick({v}, other={w})
self.first({v})
self.halved({v})
self.spread(*{v})
self.named(**{v})
self.fixed({v})
helper({v})
centred({v})
recursive({v}, 2)
(lambda: {v})()
(lambda r: r)({v})
float(np.sum({v}))
len({v})
0
None
3 * x.argmax()
"""
STATEMENTS = """
{v} = {e}
{v} = {e}
{v} = {e}
{v} = {w} = {e}
{v}, {w} = {e}, {f}
{v}, {w} = {e}
{v}, *{w} = {e}
[{v}, ({w}, _)] = {e}
{v}: object = {e}
{v} += {e}
{v} *= 2
{v} -= {e}
{v}[0] = {e}
{v}[0] += {e}
{v}[0, 0] = 7
{v}[:] = {e}
{v}[:, 0] += 1
{v}[0:1] = {e}
{v}['k'] = {e}
{v}['k'] += {e}
{v}.append({e})
{v}.extend({e})
{v}.insert(0, {e})
{v}.update(k={e})
{v}.update([('k', {e})])
{v}.sort()
{v}.fill(0)
{v}.shape = (-1,)
{v}.dtype = np.int32
{v}.real = 1
{v}.flat[0] = 5
np.copyto({v}, 1)
np.add({v}, 1, out={w})
np.put({v}, 0, 9)
self.kept = {e}
self.kept = [{e}]
self.kept += {e}
self.bag.append({e})
self.bag.extend({e})
self.bag[0:0] = {e}
BAG.append({e})
self.hold({e})
self.fill({v})
self.stash({v}, {w})
del {v}[0]
print({e}, file=NOWHERE)
"""
BLOCKS = """
for _, r in zip(range(5), {e}):
    {s}
    {v} = r
for r in {e}:
    r += 1
    break
for r in {e}:
    r[0] = 1
for i, r in enumerate(list({e})[:5]):
    {v}[i] = r
for {v}[0] in list({e})[:5]:
    {s}
while np.sum({v}) < 3:
    {s}
    break
if np.sum({v}) > 3:
    {s}
else:
    {t}
try:
    {s}
except Exception:
    {t}
with np.errstate(all='ignore'):
    {s}
def inner():
    return {v}
{w} = inner()
"""
# How the value of one name gets to the next one: every expression does, and so do these.
MOVES = """
{n} = []; {n}.append({v})
{n} = []; {n}.extend([{v}, {v}])
{n} = []; {n}.insert(0, {v})
{n} = []; {n} += [{v}]
{n} = [0]; {n}[0] = {v}
{n} = [0, 0]; {n}[:] = [{v}, {v}]
{n} = {{}}; {n}['k'] = {v}
{n} = {{}}; {n}.update(k={v})
{n} = {{}}; {n}.update([('k', {v})])
{n} = {{}}; {n}.setdefault('k', []).append({v})
{n} = []; self.stash({n}, {v})
{n} = []; n = {n}; n.append({v})
{n} = [[]]; {n}[0].append({v})
{n} = [[]] * 2; {n}[0].append({v})
{n} = np.zeros(1, dtype=object); {n}[0] = {v}
{n} = np.zeros((2, 3)); {n}[:] = {v}
{n} = np.zeros(3); {n}[0] = {v}
{n} = 0; {n} += {v}
{n} = x * 2; {n} += {v}
{n} = x.argmax(); {n} *= [{v}]
{n}, n = {v}, 1
{n}, *n = [{v}, {v}]
n, *{n} = [{v}, {v}]
{n}, n = {v}
({n} := {v})
with np.errstate(all='ignore') as n: {n} = {v}
for {n} in {v}: pass
for {n} in [{v}]: pass
for n, {n} in enumerate({v}): pass
for {n}, n in zip({v}, {v}): pass
for n, {n} in {{'k': {v}}}.items(): pass
{n} = [n for n in [{v}]][0]
{n} = [m for n in [[{v}]] for m in n]
{n} = {{n: {v} for n in 'k'}}['k']
{n} = (lambda: 1)() and {v}
{n} = self.first([{v}])
{n} = self.pick(other={v}, z={v})
{n} = {v} if BAG == [] else x
"""
# What must not be done to a caller's array, nor to a list that holds one if it is kept.
SINKS = """
{v} += 1
{v}[0] = 7
{v}[0] += 7
{v}[0][0] = 7
{v}[0, 0] = 7
{v}['k'][0] = 7
{v}['k'] += 7
{v}.sort()
{v}[0].sort()
{v}.fill(0)
{v}.shape = (6,)
{v}.pop()[0] = 7
for r in {v}: r += 1
for r in {v}: r[0] = 7
[r.fill(0) for r in {v}]
self.kept = {v}
self.kept = [{v}]
self.kept, n = {v}, 1
self.kept, n = {v}
self.bag += [{v}]
self.bag += {v}
self.bag.append({v})
self.bag[0:0] = {v}
self.hold({v})
BAG.append({v})
np.copyto({v}, 3)
np.exp({v}, out={v})
np.multiply({v}, 2, {v})
helper({v})[0] = 7
centred({v})[0] = 7
self.halved({v})
"""
MODEL = """
import io

import numpy as np
import triton_python_backend_utils as pb_utils

BAG = []
NOWHERE = io.StringIO()


def helper(z):
    return z[1:]

def centred(z):
    z = z - 1
    z *= 2
    return z

def recursive(z, depth):
    return recursive(z[:1], depth - 1) if depth else z

class TritonPythonModel:
    def __init__(self):
        self.kept = None
        self.bag = []
        BAG.clear()

    def pick(self, z, other):
        return z if np.sum(other) > 2 else other

    def first(self, z):
        for row in z:
            return row

    def halved(self, z):
        z /= 2
        return z

    def spread(self, *rows):
        return rows

    def named(self, **rows):
        return rows

    @staticmethod
    def fixed(z):
        return z[..., 0]

    def hold(self, z):
        self.kept = z

    def fill(self, rows):
        rows.append(1)

    def stash(self, rows, z):
        rows.append(z)

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            kept = repr([self.kept, self.bag, BAG])  # as the last request has left it
            a, b, c, d = x, x * 2, [], {}
BODY
            told = [repr(thing) for thing in (a, b, c, d, x, self.kept, self.bag, BAG)]
            out = np.array([[*told, kept]], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
# A write that is refused goes out of the model, all other mistakes of a random program do not.
GUARD = """
try:
    {s}
except ValueError as error:
    if 'read-only' in str(error):
        raise
except Exception:
    pass
"""

# In what iterators and functions are shown as.
_ADDRESS = re.compile("0x[0-9a-f]+")
_lines = {
    kind: [line for line in text.strip().splitlines() if line]
    for kind, text in (("e", EXPRESSIONS), ("s", STATEMENTS), ("m", MOVES), ("k", SINKS))
}
_blocks: list[str] = []
for line in BLOCKS.strip().splitlines():
    if line.startswith((" ", "else", "except", "{w}")):
        _blocks[-1] += "\n" + line
    else:
        _blocks.append(line)


@st.composite
def expressions(draw):
    names = st.sampled_from(NAMES)
    text = draw(st.sampled_from(_lines["e"])).format(v=draw(names), w=draw(names))
    if draw(st.integers(0, 3)) == 0 and not text[0].isdigit() and ":=" not in text:
        outer = draw(st.sampled_from(_lines["e"]))
        if ":=" not in outer:
            text = outer.format(v=f"({text})", w=draw(names))
    return text


@st.composite
def statements(draw, deep=True):
    names = st.sampled_from(NAMES)
    block = deep and draw(st.integers(0, 4)) == 0
    text = draw(st.sampled_from(_blocks if block else _lines["s"]))
    parts = {"v": draw(names), "w": draw(names)}
    if "{e}" in text:
        parts["e"] = draw(expressions())
    if "{f}" in text:
        parts["f"] = draw(expressions())
    for part in "st":
        if f"{{{part}}}" in text:
            parts[part] = textwrap.indent(draw(statements(deep=False)), "    ").strip()
    return text.format(**parts)


@st.composite
def chains(draw):
    """The input on its way through some names to where it must not go."""
    found = []
    for at in range(draw(st.integers(0, 4))):
        v, n = f"v{at}" if at else "x", f"v{at + 1}"
        if draw(st.booleans()):
            found.append(draw(st.sampled_from(_lines["m"])).format(v=v, n=n))
        else:
            made = draw(st.sampled_from(_lines["e"])).format(v=v, w=draw(st.sampled_from((v, "x"))))
            found.append(f"{n} = {made}")
    last = f"v{len(found)}" if found else "x"
    return [*found, draw(st.sampled_from(_lines["k"])).format(v=last)]


@st.composite
def bodies(draw):
    found = draw(chains() | st.lists(statements(), min_size=1, max_size=5))
    return "\n".join(
        GUARD.strip().replace("{s}", textwrap.indent(text, "    ").strip()) for text in found
    )


def answers(file: Path, *, borrow: bool | None) -> tuple[list[object], str]:
    """Return what a model answers to two requests, and why it gets copies if it gets them."""
    modules = LocalModules(1, [file.parent])
    instance = PythonInstance(
        lambda: modules.load(file).TritonPythonModel(),
        Running("m", "m_0_0"),
        {},
        force_cpu=True,
        source_name="m",
        release=modules.close,
    )
    why = instance.copies_because
    if borrow is not None:
        instance._borrows = borrow
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    found: list[object] = []
    for factor in (1, 10):
        mine *= factor
        sent = mine.view()
        sent.flags.writeable = False
        before = mine.copy()
        try:
            (response,) = instance.execute([Request({"IN": sent})], Timer())
            found.append([_ADDRESS.sub("", str(v)) for v in response.outputs["OUT"].ravel()])
        except ModelError as error:
            found.append(error.message.splitlines()[0])
        assert np.array_equal(before, mine)
        assert sent.shape == (2, 3)
        assert sent.dtype == np.float32
    instance.finalize()
    return found, why


def check(body: str, folder: Path) -> str:
    """Compare a body with copies and with borrowed arrays; return why it is not believed."""
    install_pb_utils()
    file = folder / "model.py"
    file.write_text(MODEL.replace("BODY", textwrap.indent(body, " " * 12)))
    lent, why = answers(file, borrow=None)
    if not why:
        copied, _ = answers(file, borrow=False)
        assert lent == copied, f"{body}\n{lent}\n{copied}"
    return why


def main() -> int:
    """Run as many random bodies as the command line says."""
    counts: Counter[str] = Counter()
    np.seterr(all="ignore")

    @settings(
        max_examples=int(sys.argv[1]), deadline=None, suppress_health_check=list(HealthCheck),
        database=None,
    )  # fmt: skip
    @given(bodies())
    def run(body: str) -> None:
        why = check(body, Path(folder))
        counts[re.sub(r".*line \d+: ", "", why) if len(sys.argv) > 2 else bool(why)] += 1

    with tempfile.TemporaryDirectory() as folder:
        run()
    print(counts.most_common(40))
    return 0


if __name__ == "__main__":
    sys.exit(main())
