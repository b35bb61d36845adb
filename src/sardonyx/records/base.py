"""What every record has: JSON that names its kind and the version of the schema, and is refused where either is wrong.

A record is what a command answers with. Its JSON begins with `"record": "run"`, the tag of its class, and ends with
`"schema_version": 1`. A reader knows the class by the tag alone, and reads no other version than its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, cast

import msgspec

from sardonyx.errors import UsageError

SCHEMA_VERSION = 1  # of all records, since they share their parts; raised when a field goes or changes its meaning
_WRITE_AGAIN = "write it again with this version of sardonyx"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """The base of all records: a subclass gives its tag and its title, and the fields it adds."""

    title: ClassVar[str]  # what messages call one, with its article: "an inspection"
    schema_version: Literal[1] = SCHEMA_VERSION

    @classmethod
    def record_tag(cls) -> str:
        """The name of the kind in JSON."""
        return cast("str", cls.__struct_config__.tag)

    @classmethod
    def published(cls) -> type[Record]:
        """The class that the schema describes: this one, or the base that it adds a model to."""
        return next(
            each for each in reversed(cls.__mro__) if issubclass(each, Record) and each.record_tag() == cls.record_tag()
        )

    def plain(self) -> Record:
        """The record without the fields that a subclass of the published class adds, here and in records in it."""
        kind = self.published()
        values: dict[str, Any] = {}
        for name in kind.__struct_fields__:
            value = getattr(self, name)
            values[name] = value.plain() if isinstance(value, Record) else value
        return kind(**values)

    def to_json(self) -> bytes:
        """The record as JSON."""
        return msgspec.json.encode(self.plain())

    @classmethod
    def from_json(cls, data: bytes | str, name: str = "the text", hint: str | None = None) -> Self:
        """A record of this kind, read from JSON.

        Args:
            data: what `to_json` gave.
            name: what an error calls the text, such as the path of its file.
            hint: what an error proposes.

        Raises:
            UsageError: the text is not JSON, or a record of another kind or of another version, or not complete.
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
        """The published JSON Schema."""
        return msgspec.json.schema(cls)


class Header(msgspec.Struct, frozen=True):
    """What a reader looks at first; all else of the document is skipped."""

    record: Any = None
    schema_version: Any = None


def header(data: bytes | str, name: str, hint: str | None = None) -> Header:
    """The tag and the version of a document.

    Args:
        data: JSON.
        name: what messages call the document.
        hint: what to do where it is no record.

    Raises:
        UsageError: it is no JSON object.
    """
    try:
        return msgspec.json.decode(data, type=Header)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name} is no record of sardonyx: {error}", hint=hint) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}", hint=hint) from error
