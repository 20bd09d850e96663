"""The error that a recipe with mistakes becomes when somebody wants to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fanfold.errors import AuthorError
from fanfold.text.diagnostics import Diagnostic, Source, render_text


class RecipeRefused(AuthorError):
    """The recipe has errors. `rendered` shows them to a person; `details` is what `check --json` says."""

    def __init__(self, ref: str, diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> None:
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        details = {"ok": False, "diagnostics": msgspec.to_builtins(diagnostics)}
        super().__init__(
            errors[0].code, errors[0].message + more, hint=f"fanfold check {ref}", details=details
        )
        self._diagnostics = diagnostics
        self._sources = sources

    def rendered(self, colour: bool) -> str:
        """The diagnostics in compiler style."""
        return render_text(self._diagnostics, self._sources, colour)
