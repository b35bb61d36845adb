"""A Run as a page: one HTML file that needs nothing else, for people to read and to send to each other.

Each part of the page is a file here that makes a `Section`; its template is in `templates/`, the script that makes it
answer in `assets/`. What a model calls its parts reaches the page as escaped text or inside the data island, nowhere
else.
"""

from sardonyx.reporting.page.page import render_page as render_page
