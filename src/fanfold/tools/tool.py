"""What a tool is: a name, words for the model, the struct it takes, the struct it gives, and a function.

Schemas are made from the structs, so what a surface promises is what is checked. A tool has no rules of its
own: it calls an operation and makes the answer short.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from fanfold.kernel.plan import JSON
from fanfold.runtime.views.errors import ErrorDocument
from fanfold.tools.caller import Caller

REFERENCE = "#/$defs/{name}"
_KINDS = ["object", "array", "string", "number", "boolean", "null"]
AnyValue = Annotated[JSON, Meta(extra_json_schema={"type": _KINDS})]
"""Any JSON value, in words that every client understands."""
Takes = TypeVar("Takes", bound=Struct)


class Tool(Struct, Generic[Takes], frozen=True, kw_only=True):
    """`mutates`: permission is needed, unless it is only tried (`dry_run`)."""

    name: str
    title: str
    description: str
    takes: type[Takes]
    gives: type[Struct]
    call: Callable[[Caller, Takes], Awaitable[Struct]]
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


def _schema(kind: type[Struct]) -> dict[str, Any]:
    _, parts = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    own = parts.pop(kind.__name__)
    own.pop("title", None)
    return {**own, "$defs": parts} if parts else own
