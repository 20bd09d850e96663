"""Scripts: what a scripted agent says and does at each step, written down beforehand.

Rules
* An answer belongs to a tree path. `*` stands for any index or iteration (`pages[*]/check`, `heal#*/fix`);
  among patterns that fit, the one with the fewest stars wins, then the one whose stars come later.
* The attempt alone chooses among the answers of a path, and the last serves all further attempts: running
  again after a crash is the same attempt, so it gets the same answer.
* `{{step}}` in text is the path of the step that is answering; nothing else is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fanfold.agents.scripts.answer import Answer, read_script
from fanfold.text.json_value import JSON
from fanfold.text.patterns import regex

_SLOT = regex(r"\[(\d+|\*)\]|#(\d+|\*)")
_STEP = regex(r"\{\{\s*step\s*\}\}")


class Script:
    """Answers by path. `source` is the text it was read from, for whoever freezes a run's settings."""

    def __init__(
        self, steps: Mapping[str, Sequence[Answer]], default: Sequence[Answer] = (), source: str = ""
    ) -> None:
        self.source = source
        self._default = tuple(default)
        self._exact = {path: tuple(answers) for path, answers in steps.items()}
        # A path and every pattern that may fit it have the same shape: the path with a star in each slot.
        self._patterns: dict[str, list[str]] = {}
        for path in steps:
            if "*" in path:
                self._patterns.setdefault(_shape(path), []).append(path)
        for patterns in self._patterns.values():
            patterns.sort(key=lambda path: (path.count("*"), [slot == "*" for slot in _slots(path)]))

    @classmethod
    def load(cls, text: str | bytes, file: str = "script") -> Script:
        """Read a script; raises `Refused`.

        >>> script = Script.load("default: OK from {{step}}", "script.yaml")
        >>> script.answer("kids[0]/up", 1).output
        'OK from kids[0]/up'
        """
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        steps, default = read_script(data, file)
        return cls(steps, default, data.decode("utf-8"))

    def answer(self, path: str, attempt: int) -> Answer | None:
        """What the agent at `path` does in this attempt; None when the script does not say."""
        answers = self._find(path)
        chosen = _of_attempt(answers or self._default, attempt)
        if chosen is None:
            return None
        if not chosen.speaks and chosen.fail is None:
            words = _of_attempt(self._default, attempt)
            output = words.output if answers and words is not None and words.speaks else ""
        else:
            output = chosen.output
        return replace(chosen, output=_fill(output, path), speaks=True)

    def hint(self, path: str) -> str:
        """How to give `path` an answer, with the path as it has to be written."""
        hint = f'add "{path}" under steps:, or a default:'
        unnumbered = _SLOT.sub("", path)
        if unnumbered != path and unnumbered in self._exact:
            hint += f'; "{unnumbered}" does not answer for it, "{_shape(path)}" would'
        return hint

    def _find(self, path: str) -> tuple[Answer, ...] | None:
        exact = self._exact.get(path)
        if exact is not None or not self._patterns:
            return exact
        slots = _slots(path)
        for pattern in self._patterns.get(_shape(path), ()):
            wanted = _slots(pattern)
            if all(want in ("*", slot) for want, slot in zip(wanted, slots, strict=True)):
                return self._exact[pattern]
        return None


def _slots(path: str) -> list[str]:
    return [index or iteration for index, iteration in _SLOT.findall(path)]


def _shape(path: str) -> str:
    return _SLOT.sub(lambda slot: "[*]" if slot[0][0] == "[" else "#*", path)


def _of_attempt(answers: Sequence[Answer], attempt: int) -> Answer | None:
    return answers[min(max(attempt, 1), len(answers)) - 1] if answers else None


def _fill(value: JSON, path: str) -> JSON:
    """The value with `{{step}}` replaced in its texts."""
    if isinstance(value, str):
        return _STEP.sub(lambda _: path, value) if "{{" in value else value
    if isinstance(value, list):
        return [_fill(item, path) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, path) for key, item in value.items()}
    return value
