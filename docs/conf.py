"""How Sphinx builds these pages: Markdown for prose, numpydoc docstrings for the reference."""

from importlib import metadata

project = "everypair"
author = "The everypair developers"
release = metadata.version("everypair")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the parameters' text already says it
autodoc_preserve_defaults = True  # a default's name, not the surrogate behind it
napoleon_google_docstring = False
napoleon_use_rtype = False
default_role = "code"

html_theme = "furo"
html_title = "everypair"
