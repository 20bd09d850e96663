"""Outputs as values of a type that a program names: msgspec structs, dataclasses, pydantic models, and
whatever else `msgspec.convert` knows (typed dictionaries, lists, numbers).

An output that does not fit is refused, never patched up; what no output could fit, before there is one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import shorten

T = TypeVar("T")


def check_type(kind: object) -> None:
    """Refuse what no output could ever fit, before anything is spent on a run."""
    from msgspec.inspect import CustomType, type_info

    try:
        known = type_info(kind)
        why = ""
    except (TypeError, NameError) as error:
        known, why = None, f": {error}"
    if known is not None and (
        not isinstance(known, CustomType) or known.cls is object or _is_model(known.cls)
    ):
        return
    message = f"output cannot be {shorten(repr(kind), 80)}{why}"
    hint = "name a dataclass, a pydantic model, a msgspec struct, a TypedDict, or such as list[int]"
    raise AuthorError("usage.bad_value", message, hint=hint, details={"option": "output"})


def fit(value: JSON, kind: type[T], run_id: str) -> T:
    """The output of a run as a value of this type; raises `output.unfit`."""
    checked: Any = kind
    try:
        if hasattr(kind, "__pydantic_validator__") and not hasattr(kind, "model_validate"):  # a dataclass
            checked = checked.__pydantic_validator__.validate_python(value)
        else:
            checked = (
                _modelled(kind, value)
                if _is_model(kind)
                else msgspec.convert(value, kind, dec_hook=_modelled)
            )
    except Exception as error:  # whoever wrote the type may have it raise anything
        message = f"the output of run {run_id} is no {getattr(kind, '__name__', kind)}: {error}"
        hint = f"fanfold inspect {run_id} shows it; `output_schema` makes a step keep to a shape"
        raise AuthorError("output.unfit", message, hint=hint, details={"run_id": run_id}) from error
    fitted: T = checked
    return fitted


def _is_model(kind: object) -> bool:
    """Whether it is a pydantic model; pydantic is the program's, not ours."""
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def _modelled(kind: Any, value: JSON) -> Any:
    """A value as a pydantic model, also of one inside of something else; any other is held against it."""
    return kind.model_validate(value) if _is_model(kind) else value
