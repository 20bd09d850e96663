"""The entry of `fanfold`.

Rules
* `--help` and `--version` import nothing but this file: start-up is a feature.
* A command's module is imported when the command is called, and only that one.
* The caller always gets an exit status of the table in `fanfold.errors` and, with `--json`, a document on
  stdout. A traceback is for developers (`FANFOLD_DEBUG=1`), never for users.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

COMMANDS = {
    name: f"fanfold.cli.{module}"
    for module, names in {
        "run": "run",
        "fork": "resume retry fork",
        "control": "pause cancel approve reject answer diff apply undo export import",
        "run_list": "runs",
        "history": "inspect watch logs explain query",
        "transcript": "transcript whatif costs replay verify",
        "system": "init serve doctor smoke gc state",
        "check": "check",
        "cassettes": "record test compare",
        "recipes": "list show convert plan capture schema",
        "chat": "chat",
        "agents": "agents models spawn wait send close ps mcp",
        "completion": "completion",
        "schedule": "schedule",
        "cluster": "worker cluster pull",
    }.items()
    for name in names.split()
}
"""Command → the module that holds it. Each of these names can be typed directly."""

EVERYDAY = {
    "Run recipes": "init check run resume retry pause cancel approve reject answer",
    "Follow runs": "runs inspect watch logs diff undo",
    "Work with agents and models": "chat models mcp serve doctor",
}
"""The commands that `fanfold --help` lists, in its order."""

NOUNS = {
    "recipe": {name: name for name in "list show check record test plan convert capture schema".split()},
    "history": {
        name: name
        for name in (
            "transcript explain query costs compare whatif fork apply pull export import replay"
            " verify".split()
        )
    },
    "agent": {"roles": "agents", "list": "ps"} | {name: name for name in "spawn wait send close".split()},
    "system": {name: name for name in "schedule doctor smoke gc state worker cluster completion".split()},
}
"""Noun → word after it → command: `fanfold agent list` is `fanfold ps`."""

ALONE = ""
"""The command without a name: it suggests the next commands."""

_GLOBAL_FLAGS = frozenset({"--json", "--no-color"})


def main(argv: list[str] | None = None) -> int:
    """Run one command. Return the exit status, or end the process with it if `argv` is None."""
    status = _run(sys.argv[1:] if argv is None else list(argv))
    if argv is None:
        _leave(status)
    return status


def _run(arguments: list[str]) -> int:
    # Imports create many objects and no garbage. A collection takes a twentieth of a short command,
    # and the last one at the end a tenth to a fifth.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        # Replace closed streams (`fanfold list >&-`).
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(sys, name) is not None:
                continue
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            mode = "r" if name == "stdin" else "w"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
            setattr(sys, name, stream)
    try:
        return _dispatch(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no exception reaches the user
        from fanfold.cli.command import report

        return report(error, arguments)


def _leave(status: int) -> None:
    """End the process without the clean-up of Python; stores are closed and output is written by now.

    The clean-up of all modules and objects would take a twentieth of the time of a short command.
    """
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing does before it ends a process
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python reports it itself
    os._exit(status)


def _dispatch(arguments: list[str], common: tuple[str, ...] = (), noun: str = "") -> int:
    rest = list(arguments)
    # `fanfold --project DIR list` and `fanfold list --project DIR` are the same.
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-h", "--help"):
            return _print_help(noun)
        if word in ("-V", "--version"):
            from fanfold import __version__

            sys.stdout.write(f"fanfold {__version__}\n")
            return 0
        if word == "--project" and rest:
            common += (word, rest.pop(0))
        elif word in _GLOBAL_FLAGS or word.startswith("--project="):
            common += (word,)
        else:
            from fanfold.cli.command import unknown_option

            raise unknown_option(word)
    if not rest:
        return _print_help(noun) if noun else _call(ALONE, "", [*common])
    if rest[0] == "help":
        return _dispatch([*rest[1:], "--help"], common, noun)
    if not noun and rest[0] in NOUNS:
        return _dispatch(rest[1:], common, rest[0])
    known = NOUNS[noun] if noun else dict.fromkeys([*COMMANDS, *NOUNS])
    if rest[0] not in known:
        from fanfold.cli.command import unknown_command

        raise unknown_command(rest[0], known, noun)
    return _call(NOUNS[noun][rest[0]] if noun else rest[0], f"{noun} {rest[0]}", [*common, *rest[1:]])


def _call(name: str, typed: str, arguments: list[str]) -> int:
    from importlib import import_module

    from click.exceptions import Exit

    command = getattr(import_module(COMMANDS.get(name, "fanfold.cli.system")), f"{name or 'next'}_command")
    # Not `command.main`: click would handle interrupts and closed pipes itself.
    try:
        with command.make_context(" ".join(["fanfold", *typed.split()]), arguments) as context:
            status = command.invoke(context)
    except Exit as done:  # --help
        status = done.exit_code
    sys.stdout.flush()  # a closed pipe raises here, not at interpreter exit
    return status if isinstance(status, int) else 0


def _print_help(noun: str) -> int:
    sys.stdout.write(read_page(f"help_{noun or 'fanfold'}.txt"))
    sys.stdout.flush()
    return 0


def read_page(name: str) -> str:
    """Return a text of the folder `pages`; `make fix` writes those of help."""
    with open(f"{os.path.dirname(__file__)}/pages/{name}", encoding="utf-8") as page:
        return page.read()


if __name__ == "__main__":
    sys.exit(main())
