"""What routes are asked with: parts of the path and of the query, with their bounds."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
RunName: TypeAlias = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", description="An id, the beginning of one, or `last`.")
]
RecipeName: TypeAlias = Annotated[
    str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}(@v?[1-9][0-9]{0,8})?$", description="`name` or `name@2`.")
]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
StepPath: TypeAlias = Annotated[
    str, Meta(max_length=2_000, pattern=PRINTABLE, description="A slash in it is %2F.")
]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=500)]
Words: TypeAlias = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Status: TypeAlias = Literal[
    "pending", "running", "waiting", "paused", "completed", "partial", "failed", "cancelled", "timed_out"
]


class RunAsked(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    run: RunName


class RunAt(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Annotated[int, Meta(ge=1, le=2**53, description="As it was after this event.")] | None = None


class StepAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    step: StepPath


class StepAt(StepAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Number | None = None
