"""Commands for typer, made from the options of a `Verb`, and their help.

Help is plain text without the boxes that typer draws: it is easy to grep, and no name in it is read as markup.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from msgspec import UNSET
from typer.core import TyperCommand

from sardonyx.cli.console import COMMAND_LINE, CONFIGURATION
from sardonyx.cli.options import GATES, MANY, MORE, OUTPUT, Option
from sardonyx.cli.verb import Given, Verb, parameters

_HELP = "Help"
_GROUPS = ("Arguments", "Options", OUTPUT, MORE, MANY, GATES, _HELP)
_COMMON = ("seed", "threads", "record", "force", "as_json", "quiet", "verbose")  # the same in every command
_DEFAULT = re.compile(r"\s*\[default: (?P<value>[^\]]*?)(; [^\];]*)?\].*$")
_BOUNDS = re.compile(r"\s*\[(required|[\d.x<>=]+)\]$")


def callback(verb: Verb) -> Callable[..., int]:
    """Return the function that typer calls with the parsed options."""
    known = {name: parameter for public in verb.of for name, parameter in parameters(public).items()}
    options = [option.completed(known.get(option.name)) for option in verb.all_options]

    def command(context: typer.Context, **values: Any) -> int:
        from sardonyx.records.environment import INVOCATION  # not for --help

        with Given(verb, options, values, context) as given:
            file = CONFIGURATION.get() if given.configured else ""
            told = {"command": COMMAND_LINE.get(), "configured": given.configured, "configuration": file}
            token = INVOCATION.set(told)
            try:
                return verb.run(given)
            finally:
                INVOCATION.reset(token)

    signature = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context), *map(_parameter, options)]
    vars(command)["__signature__"] = Signature(signature)
    command.__annotations__ = {each.name: each.annotation for each in signature}
    return command


def _parameter(option: Option) -> Parameter:
    """Return an option as a parameter with the annotation that typer reads."""
    default = Parameter.empty if option.default is UNSET else option.default
    info: Any
    if option.argument:
        shown = option.default not in (UNSET, None)
        info = typer.Argument(metavar=option.metavar, help=option.help, show_default=shown, callback=option.read)
    else:
        info = typer.Option(
            *option.flags,
            metavar=option.metavar,
            help=option.help,
            rich_help_panel=option.group,
            min=option.least,
            max=option.most,
            case_sensitive=not option.any_case,
            autocompletion=option.values,
            show_default=option.default is not None,
        )
    kind = option.type if option.default is not None else option.type | None
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


class GroupedCommand(TyperCommand):
    """A command whose help explains the options that most users need in a line each, and names the others.

    With --verbose, or if the command has no such option, it explains all of them, in the groups declared with
    `rich_help_panel`.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write every group that is not empty, in a fixed order."""
        groups: dict[str, list[Any]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            if parameter.get_help_record(ctx) is not None:
                groups[_group(parameter)].append(parameter)
        if ctx.obj or all(parameter.name != "verbose" for parameter in self.params):
            for title, parameters in groups.items():
                if parameters:
                    with formatter.section(title):
                        formatter.write_dl([parameter.get_help_record(ctx) for parameter in parameters])
            return
        options = [*groups["Options"], *groups[OUTPUT]]
        shown = [parameter for parameter in options if parameter.name not in _COMMON] or groups[MORE]
        rest = [parameter for parameter in (*groups[MORE], *options) if parameter not in shown]
        more = [*rest, *groups[MANY], *groups[GATES], *groups[_HELP]]
        for title, parameters in (("Arguments", groups["Arguments"]), ("Options", shown)):
            if parameters:
                with formatter.section(title):
                    formatter.write_dl([_short_row(parameter, ctx) for parameter in parameters], col_max=24)
        with formatter.section(f"More (`{ctx.command_path} --help -v` explains them)"):
            names = ", ".join(_name(parameter, ctx).replace(" ", "\0") for parameter in more)
            for line in textwrap.wrap(names, formatter.width - formatter.current_indent, break_on_hyphens=False):
                formatter.write(" " * formatter.current_indent + line.replace("\0", " ") + "\n")


def _short_row(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return an option with the first sentence about it, and its default if it has one."""
    name, text = parameter.get_help_record(ctx)
    match = _DEFAULT.search(text)
    default = "" if match is None or match["value"] == "none" else f" [default: {match['value']}]"
    sentence = _BOUNDS.sub("", _DEFAULT.sub("", text)).partition(". ")[0].rstrip(".")
    return name, f"{sentence}.{default}"


def _name(parameter: Any, ctx: Any) -> str:
    """Return an option as it is usually written, with its value: -q, --seed N, --external-data/--inline."""
    flags, _, value = parameter.get_help_record(ctx)[0].rpartition(" ")
    if parameter.is_flag:
        return "/".join(min(names, key=len) for names in (parameter.opts, parameter.secondary_opts) if names)
    short = min(parameter.opts, key=len)
    return short if not flags or value.startswith("<") else f"{short} {value}"


def _group(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    if parameter.name in ("help", "debug"):
        return _HELP
    return parameter.rich_help_panel or "Options"
