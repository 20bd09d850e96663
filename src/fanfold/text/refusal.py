"""The error that a file with mistakes becomes when somebody wants to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fanfold.errors import AuthorError
from fanfold.text.diagnostics import Diagnostic, Source


class FileRefused(AuthorError):
    """A file has errors. `rendered` shows them to a person; `details` is what `check --json` says. `file`,
    `line` and `column` are where the first of them stands.
    """

    def __init__(
        self, diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source], hint: str = ""
    ) -> None:
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        details = {"ok": False, "diagnostics": msgspec.to_builtins(diagnostics)}
        first = errors[0]
        place = f"{first.file}:{first.range.start.line}:{first.range.start.column}"
        message = f"{place}: {first.message}{more}"
        super().__init__(first.code, message, hint=hint or first.help, details=details)
        self.diagnostics = tuple(diagnostics)
        self.file, self.line, self.column = first.file, first.range.start.line, first.range.start.column
        self._sources = sources

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # a hint may still change
        """Every mistake with its line and a caret, as `fanfold check` shows it."""
        return [self.rendered(False).rstrip(), *super().__notes__]

    def rendered(self, colour: bool) -> str:
        """The diagnostics in compiler style."""
        from fanfold.text.renderings import render_text

        return render_text(self.diagnostics, self._sources, colour)
