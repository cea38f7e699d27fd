"""PB91: what EXECUTION_ENV_PATH names, as an interpreter with its variables."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from nbtriton.common.errors import InternalError
from nbtriton.model.config import parse_pbtxt
from nbtriton.runtime.workers.environment import Environments
from tests.workers.environments import make_environment, pack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("made") / "env")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, of each test alone."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def environments():
    made = Environments()
    yield made
    made.close()


@pytest.fixture
def find(environments):
    def find(path, directory=None):
        text = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'
        return environments.find(parse_pbtxt(text), directory)

    return find


def test_PB91_a_model_without_the_parameter_has_none(environments):
    assert environments.find(parse_pbtxt(""), None) is None


def test_PB91_a_folder_is_used_as_it_is(find, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    found = find(folder)
    assert found.folder == folder
    assert found.interpreter.executable == str(folder / "bin" / "python")
    variables = found.interpreter.variables()
    assert variables["VIRTUAL_ENV"] == str(folder)
    assert variables["PATH"].startswith(f"{folder / 'bin'}:")
    assert variables["LD_LIBRARY_PATH"] == f"{folder / 'lib'}:/elsewhere"
    assert found.libraries == "/elsewhere"
    assert "PYTHONPATH" not in variables


def test_PB91_its_python_has_its_packages_and_nbtriton_and_no_others(find, folder):
    interpreter = find(folder).interpreter
    tells = (
        "import importlib.util, sys\nsys.path[:0] = sys.argv[1:]\nimport nbtriton.backends.python.model\n"
        "print([name for name in ('numpy', 'nbtriton', 'pytest', 'google.protobuf', 'IPython')"
        " if name.partition('.')[0] in sys.modules or importlib.util.find_spec(name.partition('.')[0])])"
    )
    done = subprocess.run(
        [interpreter.executable, "-c", tells, *interpreter.path],
        env=interpreter.variables(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "['numpy', 'nbtriton']\n"


def test_PB91_variables_of_the_activate_script_are_set(find, folder, tmp_path):
    copy = tmp_path / "env"
    shutil.copytree(folder, copy, symlinks=True)
    script = copy / "bin" / "activate"
    script.write_text(script.read_text() + 'echo activated\nexport MODEL_HOME="/a b\nc"\n')
    assert dict(find(copy).interpreter.environment)["MODEL_HOME"] == "/a b\nc"


def test_PB91_another_numpy_in_it_is_another_interpreter(find, folder, tmp_path):
    """A process that forks workers has imported the one before."""
    copy = tmp_path / "env"
    shutil.copytree(folder, copy, symlinks=True)
    found = []
    for version in ("1", "22", "22"):
        (site,) = copy.glob("lib/python3*/site-packages")
        (site / "numpy").unlink(missing_ok=True)
        (tmp_path / version).mkdir(exist_ok=True)
        (tmp_path / version / "__init__.py").write_text(f"__version__ = '{version}'")
        (site / "numpy").symlink_to(tmp_path / version)
        found.append(find(copy).interpreter)
    assert found[0] != found[1] == found[2]


def test_PB91_an_archive_is_unpacked_once_and_again_when_it_has_changed(
    find, environments, folder, tmp_path, temporary
):
    archive = pack(folder, tmp_path / "env.tar.gz")
    other = tmp_path / "link.tar.gz"
    other.symlink_to(archive)
    first = find(archive)
    assert first.folder.is_relative_to(temporary)
    assert first.interpreter.executable == str(first.folder / "bin" / "python")
    assert find(archive).folder == find(other).folder == first.folder
    os.utime(archive, (1, 1))
    second = find(archive)
    assert second.folder != first.folder
    assert first.folder.is_dir()  # instances may run in it
    environments.close()
    assert not list(temporary.iterdir())


def test_PB91_a_plain_tar_file_and_the_model_s_directory(find, folder, tmp_path):
    pack(folder, tmp_path / "env.tar", "w")
    assert find("$$TRITON_MODEL_DIRECTORY/env.tar", tmp_path).folder.is_dir()


def test_PB91_what_its_python_prints_at_its_start_is_no_part_of_its_answer(find, folder, tmp_path):
    copy = tmp_path / "env"
    shutil.copytree(folder, copy, symlinks=True)
    (site,) = copy.glob("lib/python3*/site-packages")
    (site / "hello.pth").write_text("import sys; print('hello')\n")
    assert find(copy).folder == copy


def edited(folder, change):
    """Return a function that makes an environment and changes it."""

    def make(tmp_path):
        copy = tmp_path / "env"
        shutil.copytree(folder, copy, symlinks=True)
        change(copy)
        return copy

    return make


def _script(text):
    def change(env):
        for name in ("python", "python3"):
            (env / "bin" / name).unlink()
        (env / "bin" / "python").write_text(f"#!/bin/sh\n{text}\n")
        (env / "bin" / "python").chmod(0o755)

    return change


def _dangling(env):
    for name in ("python", "python3"):
        (env / "bin" / name).unlink()
        (env / "bin" / name).symlink_to("/no/such/python")


def _without_python(env):
    (env / "bin" / "activate").write_text(f"touch {env}/activated\n")
    for path in (env / "bin").glob("python*"):
        path.unlink()


def _numpy(text):
    def change(env):
        (site,) = env.glob("lib/python3*/site-packages")
        (site / "numpy").unlink()
        if text is not None:
            (site / "numpy").mkdir()
            (site / "numpy" / "__init__.py").write_text(text)

    return change


FAULTS = {
    "no script": (
        lambda env: (env / "bin" / "activate").unlink(),
        "Path {env}/bin/activate does not exist. The Python environment should contain an 'activate' script.",
    ),
    "a script that fails": (
        lambda env: (env / "bin" / "activate").write_text("echo no licence >&2; exit 3\n"),
        "The environment '{env}' does not start (exit status 3):\nno licence",
    ),
    "no interpreter": (
        _without_python,
        "The environment '{env}' has no Python interpreter: {env}/bin/python does not exist.",
    ),
    "an interpreter that is elsewhere": (
        _dangling,
        (
            "The environment '{env}' has no usable Python interpreter: {env}/bin/python is a link to "
            "'/no/such/python', which does not exist."
        ),
    ),
    "an interpreter that fails": (
        _script("echo cannot open shared object >&2; exit 127"),
        "The environment '{env}' does not start (exit status 127):\ncannot open shared object",
    ),
    "an old Python": (
        _script("""echo '{"python": [3, 8, 18], "numpy": "1.24.4"}'"""),
        "The environment '{env}' has Python 3.8.18; a model needs 3.10 or newer.",
    ),
    "no NumPy": (
        _numpy(None),
        "The environment '{env}' has no NumPy, which holds the tensors of a model.",
    ),
    "a NumPy that cannot be imported": (
        _numpy("raise ImportError('libopenblas.so.0: cannot open')"),
        "The environment '{env}' has no NumPy that can be imported: libopenblas.so.0: cannot open.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_PB91_a_folder_that_is_no_environment(fault, find, folder, tmp_path):
    change, text = FAULTS[fault]
    env = edited(folder, change)(tmp_path)
    with pytest.raises(InternalError) as caught:
        find(env)
    assert caught.value.message == text.format(env=env)
    assert not (env / "activated").exists()  # no script of an environment without Python is run
    if "NumPy" in fault:
        assert caught.value.hint == f"{env}/bin/python -m pip install numpy"


def test_PB91_what_does_not_exist_is_refused_in_triton_s_words(find, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, directory, hint in (
        ("/no/such.tar.gz", None, "%triton_env makes one"),
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", tmp_path, "%triton_env makes one"),
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", None, "a model without a directory"),
        ("envs/env.tar.gz", tmp_path, "$$TRITON_MODEL_DIRECTORY/env.tar.gz"),
    ):
        with pytest.raises(InternalError) as caught:
            find(path, directory)
        named = path.replace("$$TRITON_MODEL_DIRECTORY", str(directory or ""))
        assert caught.value.message == f"Failed to get the canonical path for {named}."
        assert hint in caught.value.hint


def test_PB91_what_is_no_archive_is_refused_and_leaves_nothing(find, folder, tmp_path, temporary):
    text = tmp_path / "text"
    text.write_text("no archive at all")
    whole = pack(folder, tmp_path / "whole.tar.gz").read_bytes()
    half = tmp_path / "half.tar.gz"
    half.write_bytes(whole[: len(whole) // 2])
    refused = "archive_read_open_filename() failed."
    broken = "archive_read_next_header() failed with error code = -30 error message is "
    for path, message in (
        (text, refused),
        (pack(folder, tmp_path / "env.tar.xz", "w:xz"), refused),
        (half, broken),
    ):
        with pytest.raises(InternalError) as caught:
            find(path)
        assert caught.value.message.startswith(message)
        assert str(path) in caught.value.hint
    (base,) = temporary.iterdir()
    assert [path.name for path in base.iterdir()] == [".lock"]


def test_PB91_an_archive_of_the_folder_itself_says_what_to_pack(find, folder, tmp_path):
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "my-env")
    with pytest.raises(InternalError, match="should contain an 'activate' script") as caught:
        find(archive)
    assert "tar -C my-env -czf env.tar.gz ." in caught.value.hint


def _file(name, **fields):
    member = tarfile.TarInfo(name)
    member.size = 0 if fields else 4
    for field, value in fields.items():
        setattr(member, field, value)
    return member


OUTSIDE = {
    "above": [_file("../written")],
    "by a link": [_file("up", type=tarfile.SYMTYPE, linkname=".."), _file("up/written")],
    "a hard link": [_file("held", type=tarfile.LNKTYPE, linkname="../victim"), _file("held")],
    "a device": [_file("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_nothing_is_written_outside_of_the_folder_of_an_archive(
    how, find, environments, tmp_path, temporary
):
    archive = tmp_path / "env.tar"
    with tarfile.open(archive, "w") as file:
        for member in OUTSIDE[how]:
            file.addfile(member, io.BytesIO(b"evil") if member.size else None)
    base = environments._folder()
    (base / "victim").write_text("safe")
    with pytest.raises(InternalError, match=r"archive_read_next_header\(\) failed"):
        find(archive)
    assert (base / "victim").read_text() == "safe"
    assert {path.name for path in base.iterdir()} == {".lock", "victim"}


def test_what_a_killed_process_has_left_is_removed(find, folder, tmp_path, temporary):
    left, used = temporary / "nbtriton_env_left", temporary / "nbtriton_env_used"
    for place in (left, used):
        place.mkdir()
        (place / ".lock").touch()
        (place / "0").mkdir()
    with (used / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        find(pack(folder, tmp_path / "env.tar.gz"))
        assert used.is_dir()
    assert not left.exists()
    assert Path(tempfile.gettempdir()) == temporary
