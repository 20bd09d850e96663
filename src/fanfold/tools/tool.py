"""What a tool is: a name, words for the model, the struct it takes, the struct it gives, and a function.

Schemas are made from the structs, so what a surface promises is what is checked. A tool has no rules of its
own: it calls an operation and makes the answer short.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct

from fanfold.kernel.plan import JSON
from fanfold.runtime.views.errors import ErrorDocument
from fanfold.tools.caller import Caller

REFERENCE = "#/$defs/{name}"
_KINDS = ["object", "array", "string", "number", "boolean", "null"]
AnyValue = Annotated[JSON, Meta(extra_json_schema={"type": _KINDS})]
"""Any JSON value, in words that every client understands."""
Call: TypeAlias = Callable[[Caller, Any], Awaitable[Struct]]


class Tool(Struct, frozen=True, kw_only=True):
    """`mutates`: permission is needed, unless it is only tried (`dry_run`)."""

    name: str
    title: str
    description: str
    takes: type[Struct]
    gives: type[Struct]
    call: Call
    mutates: bool = False
    ends_something: bool = False
    """Whether work may be lost by it: clients warn their user."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """Closed, with everything that is referred to inside."""
        return _schema(self.takes)

    @property
    def output_schema(self) -> dict[str, Any]:
        """What the tool gives, or the document of an error: both are objects with `ok`."""
        _, parts = msgspec.json.schema_components([self.gives, ErrorDocument], ref_template=REFERENCE)
        either = [{"$ref": f"#/$defs/{one.__name__}"} for one in (self.gives, ErrorDocument)]
        ok = {"ok": {"type": "boolean"}}
        return {"type": "object", "properties": ok, "required": ["ok"], "anyOf": either, "$defs": parts}


def tool(
    title: str, description: str, *, mutates: bool = False, ends_something: bool = False
) -> Callable[[Call], Tool]:
    """Make a tool of a function, which has its name, and says by its types what it takes and gives."""

    def declare(call: Call) -> Tool:
        types = get_type_hints(call)
        return Tool(
            name=call.__name__,
            title=title,
            description=description,
            takes=types["asked"],
            gives=types["return"],
            call=call,
            mutates=mutates,
            ends_something=ends_something,
        )

    return declare


def shared_fields(source: Struct, kind: type[Struct]) -> dict[str, Any]:
    """What a document has that another kind of document tells too, by name."""
    return {name: getattr(source, name) for name in kind.__struct_fields__ if hasattr(source, name)}


def _schema(kind: type[Struct]) -> dict[str, Any]:
    _, parts = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    own = parts.pop(kind.__name__)
    own.pop("title", None)
    return {**own, "$defs": parts} if parts else own
