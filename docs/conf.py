"""The documentation as a site: ``python -m sphinx -W -b html docs OUT`` builds it.

Nothing on its pages asks the network: formulas are MathML, which browsers draw without a script, and what the theme
needs lies beside the pages. ``_ext/weft_site.py`` has what is written for this site.
"""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Weft"
release = metadata.version("weft")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "weft_site"]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_typehints = "none"
autodoc_class_signature = "separated"
napoleon_custom_sections = [("Options", "params_style")]

html_theme = "furo"
html_title = f"Weft {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
}
