"""Any JSON value, by one name: the type that trees, templates and schemas speak of."""

from __future__ import annotations

from typing import Any, TypeAlias

JSON: TypeAlias = Any
"""Any JSON value. The serializer knows no recursive aliases, so the name carries the meaning."""
