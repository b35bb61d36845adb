"""Help in groups: what a command does, what it writes, the gates of a CI job, and the rest, each under its heading.

Plain text, without the boxes that typer draws where it may: it greps well, and no name in it is read as markup.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OUTPUT = "Output"
GATES = "Gates"
_HELP = "Help"
_ORDER = ("Arguments", "Options", OUTPUT, GATES, _HELP)


class Grouped(TyperCommand):
    """A command whose options stand in the groups they were declared for (`rich_help_panel`)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group that has something in it, in a fixed order."""
        groups: dict[str, list[Any]] = {title: [] for title in _ORDER}
        for one in self.get_params(ctx):
            row = one.get_help_record(ctx)
            if row is not None:
                groups[_group(one)].append(row)
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _group(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    if parameter.name in ("help", "debug"):
        return _HELP
    return parameter.rich_help_panel or "Options"
