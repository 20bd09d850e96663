"""Requests for sessions as tests want them: what is said goes to the role or to the request, by its name."""

from __future__ import annotations

from typing import Any

from fanfold.agents.backend import SessionRequest
from fanfold.agents.role import Role


def session_request(*, role: str = "worker", read_only: bool = False, **given: Any) -> SessionRequest:
    """A request for the first execution of a first attempt, unless something else is said."""
    of_role = {name: given.pop(name) for name in Role.__struct_fields__ if name in given}
    sandbox = "read-only" if read_only else "workspace-write"
    who = Role(**{"name": role, "description": "", "sandbox_mode": sandbox, **of_role})
    asked: dict[str, Any] = {"session_id": "s", "run_id": "r", "step": "a", "attempt": 1, "execution": 1}
    return SessionRequest(**{**asked, "prompt": "go", "role": who, **given})
