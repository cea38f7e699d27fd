"""Sphinx's settings for the documentation site; `scripts/docs.py` lays out what it reads."""

from __future__ import annotations

import nbtriton

project = "nbtriton"
author = "the nbtriton authors"
version = release = nbtriton.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = f"nbtriton {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Cells and lines of a notebook, with their magics.
highlight_language = "ipython3"

# The anchors of headings, as code hosts make them.
myst_heading_anchors = 4
# Notebooks are shown as they are committed: without outputs. `make lab` runs them.
nb_execution_mode = "off"
# The notebooks' own languages and magics are no valid Python.
suppress_warnings = ["misc.highlighting_failure", "mystnb.unknown_mime_type"]

napoleon_google_docstring = False
napoleon_use_rtype = False
# `name` in a docstring is a Python object where there is one.
default_role = "py:obj"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
