"""Documents as text, for tests of their content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.reporting.document import Document, View
from sardonyx.reporting.writers import markdown, terminal
from sardonyx.reporting.writers.terminal import Style


def in_terminal(document: Callable[..., Document], *arguments: Any, color: bool = False) -> str:
    """Return what a terminal shows of a document; the last argument is a view, or the plain one is used."""
    return terminal.write(_document(document, arguments), Style(color))


def in_markdown(document: Callable[..., Document], *arguments: Any) -> str:
    """Return the Markdown of a document."""
    return markdown.write(_document(document, arguments))


def _document(document: Callable[..., Document], arguments: tuple[Any, ...]) -> Document:
    return document(*arguments) if isinstance(arguments[-1], View) else document(*arguments, View())
