"""The subcommands of `sardonyx` as click commands."""

from __future__ import annotations

from typing import Any

import typer.main

from sardonyx.cli.main import _app  # pyright: ignore[reportPrivateUsage]


def subcommand(verb: str) -> Any:
    """Return the subcommand with its options."""
    group: Any = typer.main.get_command(_app([verb]))
    return group.commands[verb]
