"""Outputs as values of a type that a program names: msgspec structs, dataclasses, pydantic models, and
whatever else `msgspec.convert` knows (typed dictionaries, lists, numbers).

An output that does not fit is refused, never patched up.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON

T = TypeVar("T")


def fit(value: JSON, kind: type[T], run_id: str) -> T:
    """The output of a run as a value of this type; raises `output.unfit`."""
    checked: Any = kind
    try:
        if hasattr(kind, "model_validate"):  # a pydantic model; pydantic is the program's, not ours
            checked = checked.model_validate(value)
        elif hasattr(kind, "__pydantic_validator__"):  # a pydantic dataclass
            checked = checked.__pydantic_validator__.validate_python(value)
        else:
            checked = msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        message = f"the output of run {run_id} is no {getattr(kind, '__name__', kind)}: {error}"
        hint = f"fanfold inspect {run_id} shows it; `output_schema` makes a step keep to a shape"
        raise AuthorError("output.unfit", message, hint=hint, details={"run_id": run_id}) from error
    fitted: T = checked
    return fitted
