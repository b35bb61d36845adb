"""A command: its options, the public function that it calls, and how the result is shown.

The defaults fit a command that calls a function and shows the record it returns. Anything else is in its `run`. What
commands need of a public function (parameters, types, defaults, descriptions) is read from its source, which is
parsed and not imported, since `--help` must not wait for torch, onnx or a runtime.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import msgspec
from msgspec import UNSET, Struct

import sardonyx
from sardonyx.cli import files
from sardonyx.cli.console import complain, progress, put, put_json, style_for
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import DEBUG, GATING, Option, reject_both
from sardonyx.common.atomic_write import write_whole
from sardonyx.errors import VerificationFailed
from sardonyx.records.outside import OutsideRecord
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.formatting import notes_with_flags
from sardonyx.reporting.writers import terminal

if TYPE_CHECKING:
    import typer

    from sardonyx.fleet.sources import Source

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
    entries = _ENTRY.finditer(ast.get_docstring(node) or "")
    texts = {entry["name"]: " ".join(entry["text"].split()) for entry in entries}
    found: dict[str, Parameter] = {}
    for name, annotation, value, keyword in _declared(node):
        written = ["" if each is None else ast.unparse(each) for each in (annotation, value)]
        help = texts.get(name, "")
        found[name] = Parameter(name, written[0], written[1] or None, help[:1].upper() + help[1:], keyword)
    return found


def _declared(
    node: ast.FunctionDef | ast.ClassDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None, bool]]:
    """Yield each parameter or field with its annotation, its default, and whether it is passed by name only."""
    if isinstance(node, ast.ClassDef):
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        yield from ((ast.unparse(each.target), each.annotation, each.value, True) for each in fields)
        return
    plain, named = node.args.args, node.args.kwonlyargs
    defaults = [*[None] * (len(plain) - len(node.args.defaults)), *node.args.defaults, *node.args.kw_defaults]
    for each, value in zip((*plain, *named), defaults, strict=True):
        yield each.arg, each.annotation, value, each in named


def _source(module: str) -> str:
    """Return the source of a module without importing it; only its outermost package is."""
    root, *rest = module.split(".")
    path = Path(str(import_module(root).__file__))
    path = path.parent.joinpath(*rest) if rest else path.with_suffix("")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def _nothing(_record: Any, _view: View) -> Document:
    return Document(())


def later(name: str) -> Callable[..., Any]:
    """Return a function that is imported when it is called, as what renders should be: see `signatures` for names."""
    return lambda *values: loaded(name)(*values)


def _run(given: Given) -> int:
    """Call the function, print its record and check the gates."""
    given.check()
    return given.finish(given.call())


class Verb(Struct, frozen=True, kw_only=True):
    """A command.

    Attributes:
        options: Arguments and options, in the order of the help. `--debug` and the options of gates are added.
        of: The public function, then classes of options; see `signatures`.
        record: The tag of the record if the command has gates.
        returns: The class of the record, of a command of another package.
        document: Returns a record as a document; it and `sentence` may be left out by a command with a `run`.
        sentence: Returns a record in one line.
        csv: Returns a record as CSV, for `--format csv`.
        svg: Returns the plot of `--svg`.
        translated: Whether notes of the record name parameters, for which flags are shown.
        run: Runs the command with the parsed options and returns the exit code.
    """

    options: Sequence[Option]
    of: tuple[str, ...] = ()
    record: str = ""
    returns: type[OutsideRecord] | None = None
    document: Callable[[Any, View], Document] = _nothing
    sentence: Callable[[Any], str] = str
    csv: Callable[[Any], str] | None = None
    svg: Callable[[Any], str] | None = None
    translated: bool = False
    run: Callable[[Given], int] = _run

    @property
    def all_options(self) -> tuple[Option, ...]:
        """The options with those that are added."""
        return (*self.options, *(GATING if self.record else ()), DEBUG)


class Given:
    """The options of one call of a command: each is an attribute. A resource, which holds those of options."""

    def __init__(
        self, verb: Verb, options: Sequence[Option], values: Mapping[str, Any], context: typer.Context
    ) -> None:
        self.verb, self.context = verb, context
        self._options, self._values = {option.name: option for option in options}, dict(values)
        found = (context.get_parameter_source(name) for name in self._options)
        sources = {name: source.name for name, source in zip(self._options, found, strict=True) if source is not None}
        set_by_file = [name for name, source in sources.items() if source == "DEFAULT_MAP"]
        self.configured = {name: context.params[name] for name in set_by_file}  # what a file with defaults set
        self._resources, self._gating = ExitStack(), Gating()

    def __enter__(self) -> Self:
        given = [option for option in self._options.values() if self._values[option.name]]
        for option in given:
            if option.read is not None and not option.argument:
                self._values[option.name] = option.read(self._values[option.name])
        with ExitStack() as resources:  # closes those before one that cannot be entered
            for option in given:
                if option.resource is not None:
                    resources.enter_context(option.resource(self._values[option.name]))
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the command has no option {name!r}") from None

    def is_given(self, name: str) -> bool:
        """Return whether an option has another value than its default."""
        return name in self._values and self.context.params[name] not in (self._options[name].default, None, [], ())

    def is_typed(self, name: str) -> bool:
        """Return whether an option with another value than its default was given on the command line, not in a file."""
        return self.is_given(name) and name not in self.configured

    def flag(self, name: str) -> str:
        """Return an option as messages name it."""
        return self._options[name].flag

    def reject(self, first: str, *others: str) -> None:
        """Raise an error if an option and another that contradicts it are both given."""
        for other in others:
            for name, typed in ((first, other), (other, first)):
                if name in self.configured and self.is_typed(typed):  # the command line wins
                    del self.configured[name]
                    self._values[name] = self.context.params[name] = self._options[name].default
            reject_both(self.flag(first), self.is_given(first), self.flag(other), self.is_given(other))

    def check(
        self, record: str = "", *, beside: Iterable[Path] = (), many: bool = False, outputs: bool = True
    ) -> Gating:
        """Check before any work what the options of all commands say: printing, files to write, gates.

        Args:
            record: The tag of the record, if the command has several.
            beside: Files that the command writes besides those that options name.
            many: Whether there are many models; the files of one are then not checked.
            outputs: Whether the files that options name are checked.
        """
        for first, other in (("quiet", "verbose"), ("as_json", "format"), ("quiet", "format")):
            if {first, other} <= self._values.keys():
                self.reject(first, other)
        if self.verb.record:
            others = [*beside, *self._paths()]
            tag = record or self.verb.record
            self._gating = Gating.of(tag, self.fail_if, self.baseline, self.summary, beside=others, many=many)
        if outputs and not many:
            written = {o.flag[2:]: self._values[o.name] for o in self._options.values() if o.writes}
            files.check_apart(**written)
            if "force" in self._values:
                files.check_free(*written.values(), force=self.force)
        return self._gating

    def _paths(self) -> Iterable[Path]:
        """Yield the files that the command reads or writes."""
        for name, option in self._options.items():
            value = self._values[name]
            if name not in ("baseline", "summary") and (option.argument or isinstance(value, Path)):
                several = cast("list[Any]", value) if isinstance(value, list) else [value]
                yield from (Path(each) for each in several if isinstance(each, (str, Path)))

    def call(self, *positional: Any, **changes: Any) -> Any:
        """Call the public function with the options that are named like its parameters.

        Args:
            positional: The positional arguments; if there are none, the arguments of the command and its output.
            changes: Other values of keyword parameters.
        """
        name, values = self.verb.of[0], self._values
        known = parameters(name)
        if not positional:
            rest = iter([values[option.name] for option in self._options.values() if option.argument])
            names = [each.name for each in known.values() if not each.keyword]
            positional = tuple(values[each] if each in values else next(rest) for each in names)
        keywords = self._of(name) | changes
        reports = "progress" in known and "progress" not in changes
        with progress(reports and not values.get("quiet")) as report:
            if reports:
                keywords["progress"] = report
            return loaded(name)(*positional, **keywords)

    def settings(self, **changes: Any) -> Any:
        """Return the class of options with the values that are named like its fields."""
        name = self.verb.of[1]
        return loaded(name)(**(self._of(name) | changes))

    def _of(self, name: str) -> dict[str, Any]:
        """Return the values of keyword parameters, without those that are not given and have a default there."""
        known = [each for each in parameters(name).values() if each.keyword and each.name in self._values]
        found = ((each, self._values[each.name]) for each in known)
        return {each.name: value for each, value in found if value is not None or each.value == "None"}

    @property
    def view(self) -> View:
        """How much is shown."""
        return View(bool(self._values.get("verbose")), self._values.get("depth"))

    def finish(
        self,
        record: Any,
        *,
        document: Callable[[], Document] | None = None,
        sentence: str | None = None,
        differs: str = "",
        after: str = "",
    ) -> int:
        """Write and print a record, check the gates, and return the exit code.

        Args:
            record: The result.
            document: Returns what is printed, if it needs more than the record.
            sentence: The result in one line, likewise.
            differs: Why a verification failed, for `--json`; the text says so itself.
            after: A last line.
        """
        values, verb = self._values, self.verb
        shown = notes_with_flags(record) if verb.translated else record
        if values.get("record") is not None:
            data: bytes = record.to_json()
            write_whole(self.record, msgspec.json.format(data, indent=2) + b"\n", force=self.force)
        if verb.svg is not None and values.get("svg") is not None:
            write_whole(self.svg, verb.svg(record).encode(), force=self.force)
        answer = document or (lambda: verb.document(shown, self.view))
        style, form = style_for(sys.stdout), values.get("format", "text")
        if form == "markdown":
            from sardonyx.reporting.writers import markdown

            put(markdown.write(answer()))
        elif form == "csv" and verb.csv is not None:
            put(verb.csv(shown))
        elif self.as_json:
            put_json(record.to_json() if differs else self._gating.with_results(record.to_json(), record))
        elif self.quiet:
            put(terminal.sentence(answer(), style))
        else:
            put(terminal.write(answer(), style) + after)
        if differs and self.as_json:
            complain(VerificationFailed(differs))
        line = verb.sentence(record) if sentence is None else sentence
        return self._gating.outcome(record, line, failed=VerificationFailed.exit_code if differs else 0)

    def run_many(
        self,
        sources: Sequence[Source],
        sentence: Callable[[Any, Source], str] | None = None,
        document: Callable[[Any, Source], Document] | None = None,
        *,
        writes: bool,
    ) -> int:
        """Run the command for each of many models; `writes`: it writes a model."""
        from sardonyx.cli.many import run_many

        view = View(True, self._values.get("depth"))
        sentence = sentence or (lambda record, _: self.verb.sentence(record))
        document = document or (lambda record, _: self.verb.document(record, view))
        return run_many(self, sources, self._gating, sentence, document, writes=writes)
