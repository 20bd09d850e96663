"""Find code whose result depends on the order of a set.

Sets of strings come out in another order in every process, so a scheduler that walks one is not
deterministic. Asking a set a question (`in`, `len`, `<=`) is fine, and so is `sorted`; walking it in any
other way is what this module reports.

The check is syntactic. It knows a value is a set from literals, `set(...)` calls, set operators, and the
annotations of names, parameters, attributes and return types; it follows values through `dict[K, set]`
and `list[set]`. It misses what has no annotation; the simulator finds that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Kind: TypeAlias = "str | tuple[str, Kind] | None"
"""`"set"`, `("map", kind of the values)`, `("seq", kind of the items)`, or None for anything else."""

SETS = frozenset({"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"})
MAPS = frozenset({"dict", "defaultdict", "OrderedDict", "Mapping", "MutableMapping"})
SEQUENCES = frozenset({"list", "tuple", "deque", "Sequence", "MutableSequence", "Iterable", "Iterator"})
WRAPPERS = frozenset({"Final", "ClassVar", "Optional", "Annotated"})

SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
LOOKUPS = frozenset({"get", "setdefault", "pop"})
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)

ORDER_FREE = frozenset({"sorted", "set", "frozenset", "any", "all", "sum", "len", "min", "max"})
WALKING_CALLS = frozenset(
    {"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "deque", "chain", "str", "repr"}
)
WALKING_METHODS = frozenset({"join", "extend", "fromkeys", "from_iterable", "extendleft"})


@dataclass(frozen=True)
class Declarations:
    """What annotations say about attributes and return values, by name."""

    attributes: dict[str, Kind] = field(default_factory=dict)
    returns: dict[str, Kind] = field(default_factory=dict)


def declarations(trees: Iterable[ast.Module]) -> Declarations:
    """What all modules say together; a name they disagree on is left out."""
    everything = Declarations()
    for tree in trees:
        found = _declared_in(tree)
        for known, new in (
            (everything.attributes, found.attributes),
            (everything.returns, found.returns),
        ):
            for name, kind in new.items():
                known[name] = kind if known.get(name, kind) == kind else None
    return everything


def walks_over_sets(tree: ast.Module, elsewhere: Declarations | None = None) -> list[tuple[int, str]]:
    """Each place in `tree` that walks a set, as its line and what it does there.

    >>> walks_over_sets(ast.parse("for name in {'a', 'b'}: ..."))
    [(1, 'loops over a set')]
    """
    own, other = _declared_in(tree), elsewhere or Declarations()
    known = Declarations(other.attributes | own.attributes, other.returns | own.returns)
    walker = _Walker(known)
    walker.visit(tree)
    return sorted(walker.found)


def _declared_in(tree: ast.Module) -> Declarations:
    found = Declarations()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(body=body):
                for statement in body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        found.attributes[statement.target.id] = _kind_of_annotation(statement.annotation)
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                found.attributes[name] = _kind_of_annotation(annotation)
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                kind = _Walker(Declarations()).kind_of(value)
                if kind is not None:
                    found.attributes.setdefault(name, kind)
            case ast.FunctionDef(name=name, returns=ast.expr() as annotation):
                found.returns[name] = _kind_of_annotation(annotation)
    return found


def _kind_of_annotation(node: ast.expr) -> Kind:
    match node:
        case ast.Constant(value=str(text)):
            return _kind_of_annotation(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _kind_of_annotation(left) or _kind_of_annotation(right)
        case ast.Subscript(value=base, slice=inner):
            arguments = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _kind_of_generic(_last_name(base), arguments)
        case ast.Name() | ast.Attribute():
            return _kind_of_generic(_last_name(node), [])
    return None


def _kind_of_generic(name: str, arguments: list[ast.expr]) -> Kind:
    if name in SETS:
        return "set"
    if name in WRAPPERS and arguments:
        return _kind_of_annotation(arguments[0])
    if name in MAPS and len(arguments) == 2:
        return ("map", _kind_of_annotation(arguments[1]))
    if name in SEQUENCES and arguments:
        return ("seq", _kind_of_annotation(arguments[0]))
    return None


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


class _Walker(ast.NodeVisitor):
    """Visits a module in order, keeping the kinds of names in a stack of scopes."""

    def __init__(self, known: Declarations) -> None:
        self.known = known
        self.scopes: list[dict[str, Kind]] = [{}]
        self.found: set[tuple[int, str]] = set()

    # -- what an expression is

    def kind_of(self, node: ast.expr) -> Kind:
        match node:
            case ast.Set() | ast.SetComp():
                return "set"
            case ast.Name(id=name):
                return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
            case ast.Attribute(attr=name):
                return self.known.attributes.get(name)
            case ast.NamedExpr(value=value):
                return self.kind_of(value)
            case ast.IfExp(body=body, orelse=orelse):
                return self.kind_of(body) or self.kind_of(orelse)
            case ast.BoolOp(values=values):
                return next((kind for kind in map(self.kind_of, values) if kind), None)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, SET_OPERATORS):
                return "set" if self._is_set_like(left) or self._is_set_like(right) else None
            case ast.Subscript(value=base, slice=index):
                return self.kind_of(base) if isinstance(index, ast.Slice) else _inner(self.kind_of(base))
            case ast.Call():
                return self._kind_of_call(node)
        return None

    def _is_set_like(self, node: ast.expr) -> bool:
        """Sets, and views of a dictionary's keys, which operators turn into sets."""
        match node:
            case ast.Call(func=ast.Attribute(attr="keys"), args=[]):
                return True
        return self.kind_of(node) == "set"

    def _kind_of_call(self, call: ast.Call) -> Kind:
        match call.func:
            case ast.Name(id=name) if name in SETS:
                return "set"
            case ast.Name(id="defaultdict") if call.args:
                return ("map", _kind_of_annotation(call.args[0]))
            case ast.Name(id=name):
                return self.known.returns.get(name)
            case ast.Attribute(value=base, attr=name):
                owner = self.kind_of(base)
                if owner == "set":
                    return "set" if name in SET_METHODS else None
                if isinstance(owner, tuple) and owner[0] == "map" and name in LOOKUPS:
                    return owner[1]
                if isinstance(owner, tuple) and name in {"values", "items"}:
                    return ("seq", owner[1])
                return self.known.returns.get(name)
        return None

    # -- what names are bound to

    def _bind(self, target: ast.expr, kind: Kind) -> None:
        match target:
            case ast.Name(id=name):
                self.scopes[-1][name] = kind
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, None)

    def _bind_items(self, target: ast.expr, iterated: ast.expr) -> None:
        inner = _inner(self.kind_of(iterated))
        match target, iterated:
            case ast.Tuple(elts=[key, value]), ast.Call(func=ast.Attribute(attr="items")):
                self._bind(key, None)
                self._bind(value, inner)
            case _:
                self._bind(target, inner if isinstance(self.kind_of(iterated), tuple) else None)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            match target, node.value:
                case (ast.Tuple(elts=names), ast.Tuple(elts=values)) if len(names) == len(values):
                    for name, value in zip(names, values, strict=True):
                        self._bind(name, self.kind_of(value))
                case ast.Tuple() | ast.List(), value if self.kind_of(value) == "set":
                    self._report(node, "unpacks a set")
                case _:
                    self._bind(target, self.kind_of(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        self._bind(node.target, _kind_of_annotation(node.annotation))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self._bind(node.target, self.kind_of(node.value))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        everyone = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {a.arg: _kind_of_annotation(a.annotation) if a.annotation else None for a in everyone}
        self.scopes.append(scope)
        self.generic_visit(node)
        self.scopes.pop()

    # -- where a set is walked

    def _report(self, node: ast.expr | ast.stmt, what: str) -> None:
        self.found.add((node.lineno, what))

    def _report_if_set(self, node: ast.expr, what: str) -> None:
        if self.kind_of(node) == "set":
            self._report(node, what)

    def visit_For(self, node: ast.For) -> None:
        self._report_if_set(node.iter, "loops over a set")
        self._bind_items(node.target, node.iter)
        self.generic_visit(node)

    def _visit_comprehension(
        self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp | ast.SetComp
    ) -> None:
        self.scopes.append({})
        for generator in node.generators:
            if not isinstance(node, ast.SetComp):
                self._report_if_set(generator.iter, "builds an ordered result from a set")
            self._bind_items(generator.target, generator.iter)
        self.generic_visit(node)
        self.scopes.pop()

    visit_ListComp = visit_DictComp = visit_GeneratorExp = visit_SetComp = _visit_comprehension  # noqa: N815  named by ast.NodeVisitor

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in ORDER_FREE:
                for argument in node.args:
                    self._visit_inside(argument)
                return
            case ast.Call(func=ast.Name(id=name)) if name in WALKING_CALLS:
                for argument in node.args:
                    self._report_if_set(argument, f"passes a set to {name}()")
            case ast.Call(func=ast.Attribute(attr="pop", value=base), args=[]):
                self._report_if_set(base, "pops an arbitrary item of a set")
            case ast.Call(func=ast.Attribute(attr=name)) if name in WALKING_METHODS:
                for argument in node.args:
                    self._report_if_set(argument, f"passes a set to .{name}()")
        self.generic_visit(node)

    def _visit_inside(self, argument: ast.expr) -> None:
        """An argument whose own order does not matter; what is nested in it still may."""
        match argument:
            case (
                ast.GeneratorExp(elt=element, generators=generators)
                | ast.ListComp(elt=element, generators=generators)
            ):
                free = ast.copy_location(ast.SetComp(elt=element, generators=generators), argument)
                self.visit(free)
            case _:
                self.visit(argument)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._report_if_set(node.value, "unpacks a set")
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._report_if_set(node.value, "yields from a set")
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self._report_if_set(node.value, "writes a set into text")
        self.generic_visit(node)


def _inner(kind: Kind) -> Kind:
    return kind[1] if isinstance(kind, tuple) else None
