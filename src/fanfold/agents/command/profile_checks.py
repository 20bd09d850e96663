"""Whether a profile means what its author thinks: words that nobody fills in, facts that nobody takes.

Each of these would otherwise be found out in the middle of a run, by an agent that was never told its task,
or by an answer that nobody heard. `ValueError` says which word it is and what there is instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from fanfold.agents.command.events import TAKES
from fanfold.agents.command.profile import Profile

GROUPS = (
    *("budget", "conversation", "effort", "instructions", "max_turns", "model", "name", "only", "resume"),
    *("schema", "servers", "session", "tools"),
)
"""What may stand in angle brackets, and be a key of `options`."""
VALUES = (
    *("budget", "effort", "instructions", "max_turns", "model", "prompt", "prompt_file", "schema"),
    *("schema_file", "servers_allowed", "servers_file", "session", "tools", "tools_file"),
)
"""What is filled in where it stands in braces."""
_PLACES = {"argument": "{prompt}", "file": "{prompt_file}"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_profile(profile: Profile) -> None:
    """Raise what is wrong with a profile."""
    _check_program(profile)
    _check_words(profile)
    _check_events(profile)
    for key, seconds in (("idle_s", profile.idle_s), ("patience_s", profile.patience_s)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"{key} is {seconds:g}, and must be a number of seconds above 0")
    _check_paths(profile)
    for name in profile.environment:
        if _VARIABLE.fullmatch(name) is None:
            raise ValueError(f"{name!r} cannot be the name of a variable")


def _check_program(profile: Profile) -> None:
    program = profile.program
    if not program:
        raise ValueError("it names no program")
    if "/" in program and not PurePosixPath(program).is_absolute():
        raise ValueError(f"the program {program!r} must be a name on PATH or a whole path")


def _check_words(profile: Profile) -> None:
    for name in profile.options:
        _one_of(name, GROUPS, "options")
    words = [*profile.call, *(word for group in profile.options.values() for word in group)]
    for word in words:
        for name in re.findall(r"\{([a-z_]+)\}", word):
            _one_of(name, VALUES, f"the word {word!r}")
    for word in profile.call:
        if word.startswith("<") and word.endswith(">"):
            _one_of(word[1:-1], GROUPS, f"the word {word!r}")
    place = _PLACES.get(profile.prompt, "")
    if not profile.acp and place and not any(place in word for word in words):
        raise ValueError(f'prompt = "{profile.prompt}", and no word of call says {place}: it gets no task')


def _check_events(profile: Profile) -> None:
    for rule in profile.events:
        for name in rule.take:
            _one_of(name, TAKES[rule.means], f'a rule that means "{rule.means}"')
    if profile.acp or profile.output != "json_lines":
        return
    if not {"said", "finished"} & {rule.means for rule in profile.events}:
        raise ValueError('output = "json_lines" needs events: without a rule nothing of it is heard')


def _check_paths(profile: Profile) -> None:
    state = profile.state
    below = [*state.config, *state.brought, *(name.removeprefix("~/") for name in state.login)]
    for name in [*below, *([state.folder] if state.folder else [])]:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{name!r} in [state] must be a path below a folder")


def _one_of(name: str, known: Iterable[str], where: str) -> None:
    if name not in known:
        raise ValueError(f'"{name}" means nothing in {where}; there are {", ".join(sorted(known))}')
