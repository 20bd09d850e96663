"""When Archon's nodes run.

Rules
* Archon compares texts: a field that is `false` is equal to `'false'`. Greater and smaller compare numbers.
* A node that was left out is no success. What depends on it is left out too, unless its trigger rule is
  content with less; here a step runs after one that was left out, so that its condition has to say so.
* A node that was left out gives an empty text.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from fanfold.recipe.conversion.conditions import NUMBER, cel_text, in_cel
from fanfold.recipe.conversion.source import ForeignFile, Reader, step_id
from fanfold.text.trees.tree import Mapping

_ATOM = re.compile(
    r"\$(?P<node>[A-Za-z_][\w-]*)\.(?P<first>[A-Za-z_]\w*)(?:\.(?P<second>[A-Za-z_]\w*))?"
    r"\s*(?P<sign>==|!=|<=|>=|<|>)\s*"
    rf"(?:'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<bare>-?{NUMBER}|true|false))",
    re.ASCII,
)
_ONE_WILL_DO = ("none_failed_min_one_success", "one_success")
_JOINT = re.compile(r"&&|\|\|")
_NUMBER = re.compile(rf"-?{NUMBER}", re.ASCII)


class _Trigger(NamedTuple):
    needs: list[str]
    conditional: bool
    rule: str
    texts: frozenset[str]
    """The fields of which it declares that they are texts."""


class Triggers:
    """The nodes of one workflow: which may be left out, and what is to be said about that."""

    def __init__(self, source: ForeignFile, nodes: list[Mapping], plain: set[str]) -> None:
        self._plain = plain
        self._nodes: dict[str, _Trigger] = {}
        for node in nodes:
            one = Reader(source, node, "")
            rule = one.text("trigger_rule") or "all_success"
            made = _Trigger(one.texts("depends_on"), bool(one.text("when")), rule, _texts(one))
            self._nodes[one.text("id")] = made
        self._left_out = self._all_left_out()
        self.fields: dict[str, list[str]] = {}
        """What conditions ask of each node."""
        for node in nodes:
            for atom in _ATOM.finditer(Reader(source, node, "").text("when")):
                if field := _field(atom):
                    self.fields.setdefault(atom["node"], []).append(field)

    def _all_left_out(self) -> set[str]:
        """The nodes that may be skipped without anything having failed."""
        after: dict[str, list[str]] = {}
        for name, node in self._nodes.items():
            for one in node.needs:
                after.setdefault(one, []).append(name)
        found: set[str] = set()
        new = [name for name, node in self._nodes.items() if node.conditional]
        while new:
            name = new.pop()
            if name in found:
                continue
            found.add(name)
            new += [one for one in after.get(name, ()) if self._is_left_out(self._nodes[one], found)]
        return found

    def _is_left_out(self, node: _Trigger, left_out: set[str]) -> bool:
        """Whether a node is skipped when some of those before it are."""
        if node.rule == "all_success":
            return any(one in left_out for one in node.needs)
        return node.rule in _ONE_WILL_DO and all(one in left_out for one in node.needs)

    def condition(self, said: str, objects: set[str]) -> str | None:
        """A node's `when` as an expression, or None; whole `objects` are compared with nothing."""
        parts: list[str] = []
        at = 0
        for joint in [*_JOINT.finditer(_without_texts(said)), None]:
            atom = _ATOM.fullmatch(said[at : joint.start() if joint else None].strip())
            found = None if atom is None else self._compared(atom, objects)
            if found is None:
                return None
            parts += [found, joint[0]] if joint else [found]
            at = joint.end() if joint else at
        joined = " ".join(parts)
        return f"({joined})" if "||" in parts else joined

    def rule(self, name: str) -> str:
        """What the trigger rule of a node asks of those before it that may be left out."""
        node = self._nodes[name]
        if not node.needs or not self._is_left_out(node, self._left_out):
            return ""
        doubtful = [one for one in node.needs if one in self._left_out]
        there = [f'steps.{in_cel(step_id(one))}.status != "skipped"' for one in doubtful]
        if node.rule in _ONE_WILL_DO and len(there) > 1:
            return f"({' || '.join(there)})"
        return " && ".join(there)

    def _compared(self, atom: re.Match[str], objects: set[str]) -> str | None:
        name, field = atom["node"], _field(atom)
        if name not in self._nodes or (name in self._plain if field else name in objects):
            return None
        value = next(one for one in (atom["single"], atom["double"], atom["bare"]) if one is not None)
        path = f"steps.{in_cel(step_id(name))}.output" + (f".{field}" if field else "")
        is_text = not field or field in self._nodes[name].texts
        sign = atom["sign"]
        if sign in ("==", "!="):
            found = f"{path if is_text else f'string({path})'} {sign} {cel_text(value)}"
        elif _NUMBER.fullmatch(value):
            found = f"double({path}) {sign} {float(value)}"
        else:
            return None
        if name not in self._left_out:
            return found
        status = f"steps.{in_cel(step_id(name))}.status"
        if sign == "!=":
            return f'({status} == "skipped" || {found})'
        return f'({status} != "skipped" && {found})'


def _field(atom: re.Match[str]) -> str:
    """`$node.output.field`, or `$node.field` for short."""
    return atom["second"] or "" if atom["first"] == "output" else atom["first"]


def _without_texts(said: str) -> str:
    """As long as before, with nothing in quotes that could be taken for a sign."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", lambda found: "x" * len(found[0]), said)


def _texts(node: Reader) -> frozenset[str]:
    schema: Any = node.value("output_format")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    said = fields.items() if isinstance(fields, dict) else ()
    return frozenset(key for key, one in said if isinstance(one, dict) and one.get("type") == "string")
