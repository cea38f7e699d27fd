"""``%triton_env``, and cells that run in an environment of their own."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from IPython.core.error import UsageError

from nbtriton.common.errors import LoadError, UnavailableError
from nbtriton.magics import cells
from nbtriton.serving.server import server

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_names():
    """Names of environments are the process's."""
    cells.MADE.clear()


CELL = """\
%%triton_model m --env {env}
import json, os
import numpy as np
import tiny
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}})
        config.add_output({{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}})
        return config

    def execute(self, requests):
        said = json.dumps([tiny.VERSION, os.getpid()]).encode()
        tensor = pb_utils.Tensor("OUT", np.array([said], dtype=object))
        assert requests[0].inputs()[0].as_numpy()[0] >= 0, {text}
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


def cell(env="old", text="'negative'"):
    return CELL.format(env=env, text=text)


def ask(value=0):
    return json.loads(server().infer("m", {"IN": np.full(1, value, np.float32)})["OUT"][0])


def test_a_cell_runs_in_an_environment_with_packages_of_its_own(notebook, wheels):
    notebook.ok("made = %triton_env old tiny<2")
    assert "tiny" in notebook.forms(notebook.names["made"])["text/plain"]
    notebook.names["tiny"] = "the notebook's"
    notebook.ok(cell())
    version, process = ask()
    assert (version, process == os.getpid()) == (1, False)
    assert notebook.names["tiny"] == "the notebook's"
    config = server().config("m")
    folder = config.parameters["EXECUTION_ENV_PATH"].string_value
    assert folder == str(notebook.names["made"].folder)
    assert "old" in notebook.complete("%%triton_model m --env o", "")
    # Run again with another version, the model is replaced; one that fails leaves it as it is.
    notebook.ok("%%triton_env new\n# newest\ntiny>=2  # not the old one\n")
    notebook.ok(cell("new"))
    assert ask()[0] == 2
    ran = notebook(cell("new").replace("import tiny", "import no_such_module"))
    assert isinstance(ran.error, LoadError)
    assert "No module named 'no_such_module'" in ran.error.message
    assert ask()[0] == 2


def test_the_line_of_the_cell_is_shown_and_names_of_the_notebook_are_explained(
    notebook, wheels, tmp_path
):
    (tmp_path / "needs.txt").write_text("# of the model\ntiny<2\n")
    notebook.ok(f"made = %triton_env old --requirements {tmp_path / 'needs.txt'}")
    assert dict(notebook.names["made"].packages)["tiny"] == "1.0"
    notebook.names["LIMIT"] = 5
    assert "its process does not have the notebook's LIMIT" in notebook.ok(cell(text="LIMIT")).out
    ran = notebook("%triton_infer m IN=np.full(1, -1, np.float32)")
    assert "NameError: name 'LIMIT' is not defined" in str(ran.error)
    shown = "\n".join(ran.error._render_traceback_())
    assert "Cell In[" in shown
    assert "line 17, in execute" in shown
    assert "nbtriton_cell_" not in shown


def test_what_cannot_run_apart_is_refused(notebook, wheels, tmp_path):
    ran = notebook(cell("nowhere"))
    assert isinstance(ran.error, UsageError)
    assert "%triton_env nowhere PACKAGES makes it" in str(ran.error)
    ran = notebook(cell("'no env'"))
    assert "--env no env: neither" in str(ran.error)
    assert "%triton_env 'no env' PACKAGES makes it" in str(ran.error)
    notebook.ok("%triton_env old tiny<2")
    ran = notebook(cell("olt"))
    assert "did you mean 'old'?" in str(ran.error)
    function = (
        '%%triton_model m --env old\ndef f(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:\n    return IN\n'
    )
    assert "must define a class TritonPythonModel" in str(notebook(function).error)
    assert "--example" in str(notebook(cell("old --example x")).error)
    ran = notebook("%triton_env bad no-such-package")
    assert isinstance(ran.error, UnavailableError)
    assert ran.error.message.startswith("environment 'bad' cannot be made")
