"""Workflow scripts of Claude Code, by reading: calls of `agent`, `parallel` and `pipeline`, in their order.

Nothing is run. What a script decides by JavaScript (conditions, loops, code between the calls) has no
counterpart and is listed by line.
"""

from __future__ import annotations

import re
from typing import Any

from fanfold.recipe.conversion.source import Converted, ForeignFile, slug, step_id

_ASSIGNED = re.compile(
    r"(?:(?:const|let|var)\s+(?P<name>\[[^\]]*\]|\{[^}]*\}|\w+)\s*=\s*)?(?:return\s+)?"
    r"await\s+(?P<call>agent|parallel|pipeline|workflow)\s*\("
)
_QUIET = re.compile(
    r"^\s*(?://|/\*|\*|phase\(|log\(|import\s|export\s+const\s+meta|\}?\)?[;,]?\s*$|\}\s*catch)"
)
_FIELD = r"\b{name}\s*:\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|`([^`]*)`|([\w.]+))"


class _Script:
    def __init__(self, source: ForeignFile) -> None:
        self.source = source
        self.text = source.text
        self.steps: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        """Variables, and what they are in a recipe."""
        self.inputs: dict[str, Any] = {}
        self.read: set[int] = set()
        """Lines that were understood."""

    def convert(self) -> Converted:
        meta = re.search(r"export\s+const\s+meta\s*=\s*\{", self.text)
        head = self._balanced(meta.end() - 1, "{", "}") if meta is not None else ""
        if meta is not None:
            self._understood(meta.start(), meta.end() + len(head))
        recipe: dict[str, Any] = {"name": slug(_field(head, "name") or "converted")}
        if _field(head, "description"):
            recipe["description"] = _field(head, "description")
        at = meta.end() + len(head) if meta is not None else 0
        while (found := _ASSIGNED.search(self.text, at)) is not None:
            inside = self._balanced(found.end() - 1, "(", ")")
            at = found.end() + len(inside)
            self._understood(found.start(), at)
            self._call(found["call"], inside, found["name"] or "", found.end())
        self._returned(recipe, at)
        self._lose_rest()
        if self.inputs:
            recipe["inputs"] = self.inputs
        recipe["steps"] = self.steps
        return Converted(recipe, self.source.lost)

    def _call(self, kind: str, inside: str, name: str, start: int) -> None:
        before = [step["id"] for step in self.steps[-1:]]
        if kind == "agent":
            step = self._agent(inside, name, {}, start)
            self._add(step, before, name)
        elif kind == "parallel":
            self._parallel(inside, name, before, start)
        elif kind == "pipeline":
            self._pipeline(inside, name, before, start)
        else:
            line = self.text.count("\n", 0, start) + 1
            self.source.lose(line, "workflow()", "call the other recipe with a `workflow` step")

    def _parallel(self, inside: str, name: str, before: list[str], start: int) -> None:
        mapped = re.match(r"\s*([\w.]+)\.map\(\s*\(?\s*(\w+)[^)=]*\)?\s*=>", inside)
        names = [one.strip() for one in name.strip("[]").split(",")] if name.startswith("[") else []
        if mapped is not None:
            items = self._path(mapped[1])
            call = re.search(r"\bagent\s*\(", inside)
            if items is None or call is None:
                self.source.lose(
                    self.text.count("\n", 0, start) + 1, "parallel()", "what it runs over is not known"
                )
                return
            body = _balanced(inside, call.end() - 1, "(", ")")
            step = self._agent(body, name, {mapped[2]: "item"}, start)
            self._add(step | {"for_each": items.replace("-", "_")}, before, name)
            return
        together = [before]
        added: list[str] = []
        for number, call in enumerate(re.finditer(r"\bagent\s*\(", inside)):
            own = names[number] if number < len(names) else f"{name or 'part'}{number + 1}"
            step = self._agent(_balanced(inside, call.end() - 1, "(", ")"), own, {}, start)
            self._add(step, together[0], own)
            added.append(self.steps[-1]["id"])
        if name and not names:
            joined = {"id": self._unique(step_id(name)), "depends_on": added}
            values = ", ".join(f"steps.{one.replace('-', '_')}.output" for one in added)
            self.steps.append(joined | {"set": {"all": f"[{values}]"}})
            self.names[name] = f"steps.{joined['id']}.output.all"

    def _pipeline(self, inside: str, name: str, before: list[str], start: int) -> None:
        items = self._path(inside.split(",", 1)[0].strip())
        if items is None:
            line = self.text.count("\n", 0, start) + 1
            self.source.lose(line, "pipeline()", "what it runs over is not known here")
            return
        inner: list[dict[str, Any]] = []
        stages = list(re.finditer(r"\(?\s*(\w+)?(?:\s*,\s*(\w+))?[^)=(]*\)?\s*=>[^(]*?\bagent\s*\(", inside))
        for number, stage in enumerate(stages):
            last = f"steps.{inner[-1]['id']}.output" if inner else "item"
            local = {stage[1] or "": last, stage[2] or "": "item"}
            step = self._agent(
                _balanced(inside, stage.end() - 1, "(", ")"), f"stage{number + 1}", local, start
            )
            step["id"] = f"{step_id(name) if name else 'item'}-{number + 1}"
            if inner:
                step["depends_on"] = [inner[-1]["id"]]
            inner.append(step)
        group: dict[str, Any] = {
            "id": name or "pipeline",
            "for_each": items.replace("-", "_"),
            "steps": inner,
        }
        self._add(group, before, name)

    def _agent(self, inside: str, name: str, local: dict[str, str], start: int) -> dict[str, Any]:
        said, options = _first_argument(inside)
        line = self.text.count("\n", 0, start) + 1
        step: dict[str, Any] = {
            "id": step_id(_field(options, "label") or name or f"agent{len(self.steps) + 1}")
        }
        role, model = _field(options, "agentType"), _field(options, "model")
        if role:
            self.source.lose(line, f"agentType: {role}", "name a role that is known here")
        if model:
            step["model"] = model
        if re.search(r"\bschema\s*:", options):
            self.source.lose(line, "schema", "write it as output_schema")
        if re.search(r"\bisolation\s*:", options):
            self.source.lose(line, "isolation", "writers work in snapshots by themselves")
        step["prompt"] = self._text(said, local, line) or "Go on."
        return step

    def _text(self, said: str, local: dict[str, str], line: int) -> str:
        def hole(found: re.Match[str]) -> str:
            inside = re.sub(r"^JSON\.stringify\((.*?)(?:,[^)]*)?\)$", r"\1", found[1].strip())
            path = local.get(inside) or self._path(inside, local)
            if path is None:
                self.source.lose(line, f"${{{found[1]}}}", "templates name values, and no more")
                return f"(${{{found[1]}}})"
            return f"{{{{{path}}}}}"

        return re.sub(r"\$\{([^}]*)\}", hole, said.replace("{{", "\\{{")).strip()

    def _path(self, said: str, local: dict[str, str] | None = None) -> str | None:
        first, _, rest = said.partition(".")
        if first == "args":
            name = rest.split(".")[0] or "args"
            self.inputs.setdefault(name, {})
            return f"inputs.{rest or 'args'}"
        known = (local or {}).get(first) or self.names.get(first)
        if known is None or not re.fullmatch(r"[\w.]+", said):
            return None
        return f"{known}.{rest}" if rest else known

    def _add(self, step: dict[str, Any], before: list[str], name: str) -> None:
        step["id"] = self._unique(step_id(step["id"]))
        if before:
            step = {"id": step["id"], "depends_on": before, **{k: v for k, v in step.items() if k != "id"}}
        self.steps.append(step)
        if name:
            self.names[name] = f"steps.{step['id']}.output"

    def _unique(self, name: str) -> str:
        taken = {step["id"] for step in self.steps}
        number = 2
        wanted = name
        while wanted in taken:
            wanted, number = f"{name}-{number}", number + 1
        return wanted

    def _returned(self, recipe: dict[str, Any], at: int) -> None:
        found = re.search(r"^\s*return\s+([\w.]+)\s*;?\s*$", self.text[at:], re.MULTILINE)
        path = self._path(found[1]) if found is not None else None
        if found is not None and path is not None:
            recipe["output"] = f"{{{{{path}}}}}"
            self._understood(at + found.start(1), at + found.end(1))

    def _balanced(self, start: int, opening: str, closing: str) -> str:
        return _balanced(self.text, start, opening, closing)

    def _understood(self, start: int, end: int) -> None:
        first = self.text.count("\n", 0, start) + 1
        self.read |= set(range(first, self.text.count("\n", 0, end) + 2))

    def _lose_rest(self) -> None:
        for number, line in enumerate(self.text.splitlines(), 1):
            if line.strip() and number not in self.read and not _QUIET.match(line):
                self.source.lose(number, line.strip()[:100], "JavaScript is not run")


def _balanced(text: str, start: int, opening: str, closing: str) -> str:
    """What stands between a bracket and the one that closes it; strings are passed over."""
    depth, at, quote = 0, start, ""
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"`":
            quote = char
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return text[start + 1 : at]
        at += 1
    return text[start + 1 :]


def _first_argument(inside: str) -> tuple[str, str]:
    """The text that an agent is told, strings put together, and the options behind it."""
    parts: list[str] = []
    at = 0
    piece = re.compile(
        r"\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|`((?:[^`\\]|\\.)*)`|([\w.]+))\s*(\+)?", re.DOTALL
    )
    while (found := piece.match(inside, at)) is not None:
        text = next((one for one in found.groups()[:3] if one is not None), None)
        parts.append(
            f"${{{found[4]}}}" if text is None else re.sub(r"\\(['\"`\\$])", r"\1", text).replace("\\n", "\n")
        )
        at = found.end()
        if found[5] is None:
            break
    return "".join(parts), inside[at:]


def _field(text: str, name: str) -> str:
    found = re.search(_FIELD.format(name=name), text)
    return next((one for one in found.groups() if one is not None), "") if found is not None else ""


def convert(source: ForeignFile) -> Converted:
    """A workflow script as a recipe, as far as it is one."""
    return _Script(source).convert()
