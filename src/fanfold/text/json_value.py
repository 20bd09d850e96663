"""Any JSON value, by one name, and how it reads as text: what trees, templates and schemas speak of."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

JSON: TypeAlias = Any
"""Any JSON value. The serializer knows no recursive aliases, so the name carries the meaning."""


def as_text(value: JSON) -> str:
    """A value as a prompt shows it: text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
