"""A Run as a page: one self-contained HTML file.

Each part of the page is a file here that returns a `Section`; its template is in `templates/`, its script in `assets/`.
Names from a model reach the page only as escaped text or inside the data island.
"""

from sardonyx.reporting.page.page import graph_page as graph_page
from sardonyx.reporting.page.page import render_locations as render_locations
from sardonyx.reporting.page.page import render_models as render_models
from sardonyx.reporting.page.page import render_page as render_page
