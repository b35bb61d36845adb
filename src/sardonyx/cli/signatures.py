"""The parameters of public functions, read from the source, since importing their modules takes long.

A name is that of a function or class in `sardonyx`, or `package.module:name` in another package.
"""

from __future__ import annotations

import ast
import functools
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

import sardonyx

_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "Sequence[str]": list[str]}
_ENTRY = re.compile(r"^    (?P<name>\w+): (?P<text>.*(?:\n {5,}.*)*)", re.MULTILINE)


class Parameter(Struct, frozen=True):
    """A parameter of a function, or a field of a class of options."""

    name: str
    annotation: str
    value: str | None  # the default as it is written
    help: str = ""  # from the docstring
    keyword: bool = False

    @property
    def type(self) -> Any:
        """The type that the command line parses.

        Raises:
            TypeError: the annotation does not say it.
        """
        plain = self.annotation.removesuffix(" | None")
        if plain.startswith("Literal["):
            return Literal[ast.literal_eval(f"({plain[8:-1]},)")]
        kind = Path if "Path" in plain else _TYPES.get(plain)
        if kind is None:
            raise TypeError(f"the option {self.name!r} needs a type: the parameter is annotated {self.annotation!r}")
        return kind

    @property
    def default(self) -> Any:
        """The default; UNSET if there is none.

        Raises:
            TypeError: it is not a literal.
        """
        try:
            return UNSET if self.value is None else ast.literal_eval(self.value)
        except ValueError as error:
            raise TypeError(
                f"the option {self.name!r} needs a default: that of the parameter is {self.value}"
            ) from error


def loaded(name: str) -> Any:
    """Return the function or class with a name."""
    module, _, attribute = name.rpartition(":")
    return getattr(import_module(module) if module else sardonyx, attribute)


@functools.cache
def parameters(name: str) -> dict[str, Parameter]:
    """Return the parameters of a function or the fields of a class, by name."""
    module, _, attribute = name.rpartition(":")
    source = _source(module or vars(sardonyx)["_DEFINED_IN"][attribute])
    start = [match.start() for match in re.finditer(rf"^(?:def|class) {attribute}\b", source, re.MULTILINE)][-1]
    end = re.compile(r"^[^\s)]", re.MULTILINE).search(source, source.index("\n", start) + 1)
    node = ast.parse(source[start : end.start() if end else None]).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    listed = _of_function(node.args) if isinstance(node, ast.FunctionDef) else _of_class(node)
    entries = _ENTRY.finditer(ast.get_docstring(node) or "")
    texts = {entry["name"]: " ".join(entry["text"].split()) for entry in entries}
    return {each.name: replace(each, help=_sentence(texts.get(each.name, ""))) for each in listed}


def _source(module: str) -> str:
    """Return the source of a module without importing it; only its outermost package is."""
    root, *rest = module.split(".")
    path = Path(str(import_module(root).__file__))
    path = path.parent.joinpath(*rest) if rest else path.with_suffix("")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def _of_function(arguments: ast.arguments) -> list[Parameter]:
    required = len(arguments.args) - len(arguments.defaults)
    plain = zip(arguments.args, [*[None] * required, *arguments.defaults], strict=True)
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [
        *(_parameter(each.arg, each.annotation, default) for each, default in plain),
        *(_parameter(each.arg, each.annotation, default, keyword=True) for each, default in keywords),
    ]


def _of_class(node: ast.ClassDef) -> list[Parameter]:
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return [_parameter(ast.unparse(each.target), each.annotation, each.value, keyword=True) for each in fields]


def _parameter(name: str, annotation: ast.expr | None, value: ast.expr | None, *, keyword: bool = False) -> Parameter:
    texts = (None if each is None else ast.unparse(each) for each in (annotation, value))
    return Parameter(name, next(texts) or "", next(texts), keyword=keyword)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
