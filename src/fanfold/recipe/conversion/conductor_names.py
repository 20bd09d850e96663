"""What Conductor's texts call things, in the names that recipes have for them.

An agent that declares no output gives `output.result`, which is its text. A script gives `stdout`, `stderr`
and `exit_code`, or, where anybody asks for other fields, the JSON that it printed. What is asked of a step
decides what that step is made to give, so that all names are known before the first text is read.
"""

from __future__ import annotations

import re

from fanfold.recipe.conversion.source import ForeignFile, Reader, step_id
from fanfold.text.trees.tree import Mapping

OF_PROGRAMS = ("exit_code", "stdout", "stderr")
VALUE = "value"
"""What the one value of a `set` step is called."""
_OF_CONDUCTOR = ("context", "workflow")
"""What Conductor itself gives the values of."""
_CHOSEN = ("choice", "selected", "decision")
_WORD = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*(?![\w'\"])", re.ASCII)


class Names:
    """The agents, groups and maps of one workflow."""

    def __init__(self, source: ForeignFile) -> None:
        self._source = source
        self.kinds: dict[str, str] = {}
        self.declares: set[str] = set()
        """Those that say what fields they give."""
        self.single: set[str] = set()
        """`set` steps of one value."""
        self.members: dict[str, list[str]] = {}
        """The agents of each parallel group."""
        self.maps: set[str] = set()
        self.inputs: set[str] = set()
        """Inputs that are asked for."""
        self._fields: dict[str, list[str]] = {}

    def learn(self, node: Mapping) -> None:
        """Take note of an agent."""
        reader = Reader(self._source, node, "")
        name = reader.text("name")
        self.kinds[name] = reader.text("type") or "agent"
        if reader.get("output") is not None:
            self.declares.add(name)
        if self.kinds[name] == "set" and reader.get("values") is None:
            self.single.add(name)
        asked = rf"(?<![\w.]){re.escape(name)}\.output\.([A-Za-z_]\w*)"
        found = re.findall(asked, self._source.text, re.ASCII)
        for route in reader.objects("routes"):
            when = Reader(self._source, route, "").text("when")
            found += re.findall(r"(?<![\w.])output\.([A-Za-z_]\w*)", when, re.ASCII)
            if "{{" not in when:  # fields of the own output have no name before them
                found += [word for word in _WORD.findall(when) if word in OF_PROGRAMS]
                found += re.findall(r"(?<![\w.])([A-Za-z_]\w*)\s*(?:[=!<>]=|[<>])", when, re.ASCII)
        self._fields[name] = [one for one in dict.fromkeys(found) if one not in ("output", *self.kinds)]

    def fields(self, name: str) -> list[str]:
        """What is asked of a step that does not say what it gives."""
        return [] if name in self.declares else self._fields.get(name, [])

    def prints_json(self, name: str) -> bool:
        """Whether a script's fields are those of the JSON that it prints."""
        return name in self.declares or any(one not in OF_PROGRAMS for one in self.fields(name))

    def is_text(self, name: str) -> bool:
        """Whether an agent just answers in words."""
        return name not in self.declares and all(one == "result" for one in self.fields(name))

    def path(self, path: str, own: str = "", item: str = "") -> str | None:
        """A name of theirs as ours; None for what nothing here is called."""
        words = path.split(".")
        first, rest = words[0].partition("[")[0], ".".join(words[1:])
        if path.startswith("workflow.input."):
            self.inputs.add(words[2].partition("[")[0])
            return f"inputs.{path.removeprefix('workflow.input.')}"
        if item and first == item:
            return path
        if path == "_index":
            return "index"
        if first in self.members and len(words) > 2 and words[1] == "outputs":
            return self._of_step(words[2], ".".join(words[3:]))
        if first in self.maps and rest.startswith("outputs"):
            return f"steps.{step_id(first)}.{rest.replace('outputs', 'output', 1)}"
        if first in self.kinds:
            asked = rest if rest.startswith("output") else f"output.{rest}" if rest else "output"
            return self._of_step(first, asked.removeprefix("output").removeprefix("."), chosen=rest)
        if own and first == "output":
            return self._of_step(own, rest) if "[" not in words[0] else None
        if first in _OF_CONDUCTOR:
            return None
        if own in self.kinds:  # a bare name is a field of the agent that routes
            return self._of_step(own, path)
        return None

    def _of_step(self, name: str, field: str, chosen: str = "") -> str | None:
        """A field of what a step gives, or all of it."""
        whole, kind = f"steps.{step_id(name)}.output", self.kinds.get(name, "agent")
        if kind == "human_gate" and (chosen in _CHOSEN or field in _CHOSEN):
            return f"{whole}.decision"
        if kind == "set" and name in self.single:
            return f"{whole}.{VALUE}" + (f".{field}" if field else "")
        if kind in ("wait", "terminate") and field:
            return None
        if kind == "script" and self.prints_json(name) and field in OF_PROGRAMS:
            return None
        if kind == "agent" and field == "result" and self.is_text(name):
            return whole
        return f"{whole}.{field}" if field else whole
