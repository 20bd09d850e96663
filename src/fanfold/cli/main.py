"""The entry of `fanfold`.

Rules
* `--help` and `--version` import nothing but this file and one constant: start-up is a feature.
* A command's module is imported when the command is called, and only that one.
* Whatever happens, the caller gets an exit status of the table in `fanfold.errors` and, with `--json`,
  a document on stdout. A traceback is for developers (`FANFOLD_DEBUG=1`), never for users.
"""

from __future__ import annotations

import atexit
import gc
import sys

GROUPS = {
    "Run recipes": {
        "run": "run",
        "resume": "fork",
        "pause": "control",
        "cancel": "control",
        "approve": "control",
        "reject": "control",
        "answer": "control",
        "retry": "fork",
        "fork": "fork",
        "diff": "control",
        "apply": "control",
        "undo": "control",
    },
    "Look at runs": {
        "runs": "run_list",
        "inspect": "history",
        "watch": "history",
        "logs": "history",
        "transcript": "transcript",
        "explain": "history",
        "whatif": "transcript",
        "query": "history",
        "costs": "transcript",
        "export": "control",
        "import": "control",
        "replay": "transcript",
        "verify": "transcript",
    },
    "Write recipes": {
        "init": "system",
        "list": "recipes",
        "show": "recipes",
        "check": "check",
        "convert": "recipes",
        "plan": "recipes",
        "capture": "recipes",
        "schema": "recipes",
    },
    "Agents and models": {
        "chat": "chat",
        "agents": "agents",
        "models": "agents",
        "spawn": "agents",
        "wait": "agents",
        "send": "agents",
        "close": "agents",
        "ps": "agents",
        "mcp": "agents",
    },
    "This installation": {
        "serve": "system",
        "doctor": "system",
        "smoke": "system",
        "gc": "system",
        "state": "system",
        "completion": "completion",
    },
}
"""What people do → command → the module in this package that holds it. The order is that of the help text."""

COMMANDS = {name: f"fanfold.cli.{module}" for group in GROUPS.values() for name, module in group.items()}

ALONE = ""
"""The command without a name: what to do next here."""

_GLOBAL_FLAGS = frozenset({"--json", "--no-color"})


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status, or ends the process with it where it was started for this."""
    status = _run(sys.argv[1:] if argv is None else list(argv))
    if argv is None:
        _leave(status)
    return status


def _run(arguments: list[str]) -> int:
    # Importing makes many objects and no garbage: looking for some takes a twentieth of a short command, and
    # looking through all of them once more when the process ends a tenth to a fifth.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _open_closed_streams()
    try:
        return _dispatch(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last door before the user
        from fanfold.cli.command import report

        return report(error, arguments)


def _leave(status: int) -> None:
    """End the process here, where nothing is left to be waited for: stores are closed, what was said is out.

    Python would first take apart every module and object there is, for a twentieth of a short command.
    """
    import os

    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing does before it ends a process
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python has its own way to say so
    os._exit(status)


def _open_closed_streams() -> None:
    """`fanfold list >&-`: nobody reads it. No file that is opened later may get the place of a stream:
    what is said would end up in it.
    """
    import os

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        mode = "r" if name == "stdin" else "w"
        stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as we live
        setattr(sys, name, stream)


def _dispatch(arguments: list[str]) -> int:
    common: list[str] = []
    rest = list(arguments)
    # `fanfold --project DIR list` and `fanfold list --project DIR` are the same.
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-h", "--help"):
            return _say_help()
        if word in ("-V", "--version"):
            from fanfold import __version__

            sys.stdout.write(f"fanfold {__version__}\n")
            return 0
        if word == "--project" and rest:
            common += [word, rest.pop(0)]
        elif word in _GLOBAL_FLAGS or word.startswith("--project="):
            common.append(word)
        else:
            from fanfold.cli.command import unknown_option

            raise unknown_option(word)
    if not rest:
        return _call(ALONE, common)
    if rest[0] == "help":
        return _dispatch([rest[1], "--help"]) if len(rest) > 1 else _say_help()
    return _call(rest[0], [*common, *rest[1:]])


def _call(name: str, arguments: list[str]) -> int:
    module = COMMANDS.get(name) if name else "fanfold.cli.system"
    if module is None:
        from fanfold.cli.command import unknown_command

        raise unknown_command(name, COMMANDS)
    from importlib import import_module

    from click.exceptions import Exit

    command = getattr(import_module(module), f"{name or 'next'}_command")
    # Not `command.main`: click would answer interrupts and closed pipes itself, in its own way.
    try:
        with command.make_context(f"fanfold {name}".rstrip(), arguments) as context:
            status = command.invoke(context)
    except Exit as done:  # --help
        status = done.exit_code
    sys.stdout.flush()  # a reader that went away is noticed here, not at interpreter exit
    return status if isinstance(status, int) else 0


def _say_help() -> int:
    from fanfold.cli.help_text import HELP

    sys.stdout.write(HELP)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
