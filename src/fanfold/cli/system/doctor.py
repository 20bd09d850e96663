"""`fanfold doctor`: what this installation and this project are made of, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import paint, plain
from fanfold.errors import EXIT_FAILED, EXIT_OK
from fanfold.runtime.operations.system.doctor import examine
from fanfold.runtime.views.installation import Examination
from fanfold.wiring import wire

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@command("doctor", summary="Show configuration with origins, and check store, tools and roles")
def doctor_command(call: Invocation) -> int:
    """Check this installation and this project; exit status 1 when something is broken."""
    from fanfold import __version__

    found = examine(call.project, lambda: wire(call.project, to_read=True), __version__)
    call.give(found, lambda: _text(found, call.colour))
    return EXIT_OK if found.ok else EXIT_FAILED


def _text(found: Examination, colour: bool) -> Iterator[str]:
    yield f"{paint(f'fanfold {found.version}', 'bold', colour)}  {found.project}\n\n"
    for check in found.checks:
        word = paint(check.level.ljust(7), _COLOURS[check.level], colour)
        yield f"  {word} {check.name.ljust(8)} {plain(check.message)}\n"
        for detail in check.details:
            yield f"  {'':16} {paint(plain(detail), 'dim', colour)}\n"
        if check.hint:
            yield f"  {'':16} {paint('hint', 'cyan', colour)}: {plain(check.hint)}\n"
    if not found.config:
        return
    yield f"\n{paint('Configuration', 'bold', colour)}\n"
    shown = [(one.key, _shown(one.value), one.origin) for one in found.config]
    widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
    for key, value, origin in shown:
        line = f"  {key.ljust(widths[0])}  {value.ljust(widths[1])}"
        yield f"{line}  {paint(plain(origin), 'dim', colour)}\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else plain(str(value))
