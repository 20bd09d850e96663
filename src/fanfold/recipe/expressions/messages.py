"""What the CEL library says of an expression, in words for who wrote it."""

from __future__ import annotations

import re

MAX_MESSAGE_CHARS = 300

_NEVER = {
    "_==_": "be equal", "_!=_": "be equal", "@in": "hold one another",
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), "be compared"),
}  # fmt: skip
"""What cannot be done with two values of kinds that do not fit, by the library's name of the sign."""
_CEL_WORDS = {
    "int": "a number", "uint": "a number", "double": "a number", "string": "text", "bool": "true or false",
    "null": "null", "bytes": "bytes",
}  # fmt: skip


def compile_message(message: str) -> str:
    """Why an expression cannot be compiled."""
    message = message.removeprefix("Syntax error: ")
    unexpected = re.match(
        r"(?:mismatched|extraneous) input '(.*?)' expecting|no viable alternative at input '(.*)'", message
    )
    if unexpected:
        word = unexpected[1] or unexpected[2]
        return "the expression ends too early" if word == "<EOF>" else f"{word!r} is not possible here"
    if message.startswith("token recognition error at: "):
        return f"{message.removeprefix('token recognition error at: ')} cannot be read"
    overload = re.match(r"found no matching overload for '(.*?)' applied to '\((.*)\)'", message)
    if overload and (never := _NEVER.get(overload[1])):
        kinds = [_CEL_WORDS.get(kind) or kind for kind in overload[2].split(", ")]
        return f"{' and '.join(kinds)} can never {never}"
    if overload:
        return f"{overload[1].strip('_') or overload[1]} cannot be applied to ({overload[2]})"
    return message


def run_time_message(message: str) -> str:
    """`NOT_FOUND: Key not found in map : "x" [NOT_FOUND]` without the library's status words."""
    message = re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", message)[:MAX_MESSAGE_CHARS]
    missing = re.match(r'Key not found in map : (".*)', message)
    if missing:
        return f"there is no field {missing[1]}"
    overload = re.match(r"No matching overloads found : (\S+?)(\(.*)", message)
    if overload:
        return f"{overload[1].strip('_') or overload[1]} cannot be applied to {overload[2]}"
    if message.endswith("<iter_range>"):
        return "only lists and objects can be looped over"
    if message == "Applying SELECT to non-message type":
        return "a field was asked of a value that has none, such as null or text"
    if message == "Iteration budget exceeded":
        return "the expression loops more than 10,000 times"
    return message
