"""What Archon's nodes run: shell scripts, and scripts for `bun` and `uv`.

In a shell script Archon puts the value of `$node.output` in with quotes around it, so that it is one word.
Here it is a variable, and the quotes are written where they are needed. In the other scripts it is put in as
it is.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Any

from fanfold.recipe.conversion.source import STAND_IN, ForeignFile, Reader

NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_-]*)((?:\.output(?:\.[A-Za-z_][A-Za-z0-9_]*)?)?)", re.ASCII)
"""A node's output, or one field of it: what follows is text again."""
_OF_BASH = re.compile(
    r"pipefail|\[\[|<<<|&>|<\(|\$'|\{\{|\$\{\w+(?:,|\^|//?|:\d)|\w=\(|\(\(|BASH_"
    r"|^\s*(?:function|declare|local -|mapfile|source|shopt)\b",
    re.ASCII | re.MULTILINE,
)
_ENDINGS = {"bun": (".ts", ".js", ".mjs"), "uv": (".py",)}
_STARTS = {"bun": ["bun", "--no-env-file"], "uv": ["uv", "run"]}


def shell_step(text: str, variable: Callable[[str, str], tuple[str, str] | None]) -> dict[str, Any]:
    """A step that runs a shell script; `variable` says what a name is called there, and stands for."""
    inputs: dict[str, str] = {}
    quotes = _Quotes(text)

    def named(found: re.Match[str]) -> str:
        known = variable(found[1], found[2])
        if known is None:
            return found[0]
        word, path = known
        if not path:
            return f"${word}"
        inputs[word] = path
        if not found[2]:  # what the workflow is called with: authors write the quotes themselves
            return f"${word}"
        return {"'": f"""'"${word}"'""", '"': f"${{{word}}}"}.get(quotes.around(found.start()), f'"${word}"')

    text = NAME.sub(named, text)
    if not _OF_BASH.search(text):
        return {"shell": text} | ({"inputs": inputs} if inputs else {})
    step: dict[str, Any] = {"run": ["bash", "-c", text.replace("{{", "\\{{")]}
    if inputs:
        step["env"] = {word: f"{{{{{path}}}}}" for word, path in inputs.items()}
    return step


class _Quotes:
    """Which quotes a place of a shell script stands in."""

    def __init__(self, text: str) -> None:
        self._changes: list[tuple[int, str]] = [(0, "")]
        inside, at = "", 0
        while at < len(text):
            sign = text[at]
            if sign == "\\" and inside != "'":
                at += 2
                continue
            if sign == "#" and not inside and (at == 0 or text[at - 1] in " \t\n;"):
                at = text.find("\n", at)
                if at < 0:
                    break
                continue
            if sign in "'\"" and inside in ("", sign):
                inside = "" if inside else sign
                self._changes.append((at + 1, inside))
            at += 1

    def around(self, place: int) -> str:
        """The quotes that are open there."""
        return next(inside for start, inside in reversed(self._changes) if start <= place)


def script_step(reader: Reader, source: ForeignFile, put_in: Callable[[str], str]) -> dict[str, Any]:
    """A step that runs a script of `bun` or `uv`: one that is written there, or one that lies beside."""
    said, runtime = reader.text("script"), reader.text("runtime")
    packages = [word for one in reader.texts("deps") for word in ("--with", one)]
    if runtime not in _STARTS:
        return _given_up(reader, "write it as a function, or as a program that `run` starts")
    start = [*_STARTS[runtime], *packages]
    if not re.fullmatch(r"[\w./-]+", said, re.ASCII):
        inline = ["-e"] if runtime == "bun" else ["python", "-c"]
        return {"run": [*start, *inline, put_in(said)]}
    for up in ("..", "../.."):
        for ending in _ENDINGS[runtime]:
            file = f"{up}/scripts/{said}{ending}"
            place = posixpath.normpath(posixpath.join(posixpath.dirname(source.file), file))
            if source.beside(file) is not None and not place.startswith(("/", "..")):
                return {"run": [*start, *(["run"] if runtime == "bun" else []), place]}
    return _given_up(reader, f"scripts/{said} is not there; say with `run` what to start")


def _given_up(reader: Reader, why: str) -> dict[str, Any]:
    """A step that fails in the place of a script; all that the script is started with is lost."""
    reader.lose("script", why)
    for key in ("runtime", "deps"):
        reader.lose(key, "it says how the script is started")
    return {"shell": STAND_IN}
