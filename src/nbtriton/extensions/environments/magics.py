"""The magic that makes environments for models."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.environments import ENVIRONMENT, environment
from nbtriton.magics.cells import MADE
from nbtriton.magics.common import arguments, magic
from nbtriton.options.reading import unquoted
from nbtriton.options.table import given_options


@magics_class
class EnvironmentMagics(Magics):
    """``%triton_env``."""

    @magic(line_cell_magic)
    @argument("name", type=unquoted, help="what --env calls it")
    @argument("packages", nargs="*", metavar="PACKAGE", help="as for pip, such as scikit-learn<1.6")
    @arguments(tuple(ENVIRONMENT.values()))
    def triton_env(self, options: Namespace, cell: str | None = None) -> Any:
        """Make an environment for models, by uv if it is on the PATH, else by pip.

        It has these packages and NumPy, and none of the notebook's. What was made once is kept, by its
        content: run again, it costs no time. A cell holds the lines of a requirements file. A
        model runs in it by ``%%triton_model NAME --env NAME``; in a model repository the folder that this
        shows is a value of ``EXECUTION_ENV_PATH``::

            %triton_env old "scikit-learn<1.6"
            %triton_env other --requirements requirements.txt --python 3.12

            %%triton_env old
            scikit-learn<1.6
            pillow
        """
        lines = (text.partition(" #")[0].strip() for text in (cell or "").splitlines())
        packages = [*map(unquoted, options.packages)]
        packages += [text for text in lines if not text.startswith("#")]
        given = given_options(options, ENVIRONMENT)
        made = environment(options.name, packages, on_progress=print, **given)
        MADE[options.name] = made.folder
        return made
