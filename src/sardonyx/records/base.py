"""The base class of records, with their JSON format.

A record is the result of a command. Its JSON starts with `"record": "run"`, the tag of its class, and ends with
`"schema_version": 1`. The tag determines the class; a record of another schema version is refused.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, ClassVar, Literal, Self, cast

import msgspec

from sardonyx.errors import UsageError

SCHEMA_VERSION = 1  # of all records, since they share parts; incremented if a field is removed or changes its meaning
_WRITE_AGAIN = "create it again with this version of sardonyx"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """The base of all records: a subclass defines its tag, its title and its fields."""

    title: ClassVar[str]  # the name in messages, with its article: "an inspection"
    schema_version: Literal[1] = SCHEMA_VERSION

    def __repr__(self) -> str:
        return _notebook().text(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return _notebook().markup(self)

    @classmethod
    def record_tag(cls) -> str:
        """Return the tag of the class in JSON."""
        return cast("str", cls.__struct_config__.tag)

    @classmethod
    def published(cls) -> type[Record]:
        """Return the class that the schema describes: this one, or the base class to which it adds a model."""
        bases = (base for base in reversed(cls.__mro__) if issubclass(base, Record))
        return next(base for base in bases if base.record_tag() == cls.record_tag())

    def plain(self) -> Record:
        """Return the record without the fields that a subclass of the published class adds, also in nested records."""
        kind = self.published()
        values: dict[str, Any] = {}
        for name in kind.__struct_fields__:
            value = getattr(self, name)
            values[name] = value.plain() if isinstance(value, Record) else value
        return kind(**values)

    def to_json(self) -> bytes:
        """Return the record as JSON."""
        return encode_json(self.plain())

    @classmethod
    def from_json(cls, data: bytes | str, name: str = "the text", hint: str | None = None) -> Self:
        """Read a record of this class from JSON.

        Args:
            data: The result of `to_json`.
            name: The name of the text in error messages, such as its path.
            hint: The hint in error messages.

        Raises:
            UsageError: If the text is not JSON, or a record of another class or version, or incomplete.
        """
        head = header(data, name, hint)
        if head.record != cls.record_tag():
            raise UsageError(
                f"{name} is no {cls.record_tag()!r} record: its field 'record' is {head.record!r}", hint=hint
            )
        if head.schema_version != SCHEMA_VERSION:
            message = f"{name} is {cls.title} of schema version {head.schema_version}"
            raise UsageError(f"{message}, and this sardonyx reads version {SCHEMA_VERSION}", hint=_WRITE_AGAIN)
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UsageError(f"{name} is not a complete record of {cls.title}: {error}", hint=hint) from error

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the published JSON Schema."""
        schema = msgspec.json.schema(cls)
        for part in schema["$defs"].values():
            if "description" in part:  # a docstring, which Python indents up to 3.12
                part["description"] = inspect.cleandoc(part["description"])
        return schema


def _notebook() -> Any:
    """Return what renders records, by name and when it is used, because records depend on nothing above them."""
    return importlib.import_module("sardonyx.reporting.notebook")


def encode_json(document: object) -> bytes:
    """Return JSON in UTF-8. Of a file name that is not UTF-8, every wrong byte is a replacement character."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_unicode(msgspec.to_builtins(document)))


def _unicode(value: Any) -> Any:
    """Return builtin objects without lone surrogates, which are Python's form of bytes that are not UTF-8."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_unicode(key): _unicode(each) for key, each in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_unicode(each) for each in cast("list[Any]", value)]
        case _:
            return value


class Header(msgspec.Struct, frozen=True):
    """The fields that identify a record; all others are skipped."""

    record: Any = None
    schema_version: Any = None


def header(data: bytes | str, name: str, hint: str | None = None) -> Header:
    """Return the tag and the schema version of a document.

    Args:
        data: JSON.
        name: The name of the document in error messages.
        hint: The hint in error messages.

    Raises:
        UsageError: If it is not a JSON object.
    """
    try:
        return msgspec.json.decode(data, type=Header)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name} is no record of sardonyx: {error}", hint=hint) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}", hint=hint) from error
