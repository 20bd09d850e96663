"""A foreign workflow while it is read: its tree with lines, and the parts that were not converted.

Rules
* Nothing is lost silently: a key that was not read is listed with its line when its object was read.
* Nothing is executed or fetched. Only the file is read and, if the format requires it, files next to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from msgspec import Struct

from fanfold.errors import AuthorError
from fanfold.language import tree
from fanfold.language.template import in_expression
from fanfold.language.tree import Mapping, Node, Scalar, plain
from fanfold.language.yaml_text import FORBIDDEN, TextFormat, parse_yaml

MAX_BYTES = 1024 * 1024
UNWRITTEN = "to_be_written"
"""The key of a step that could not be converted. `check` refuses it, so that it is never run or paid for."""
FORMAT = TextFormat(name="workflow", max_bytes=MAX_BYTES, clean_text=False, clean_values=False)
_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_FOR = (
    r"(?sa)\{%-?\s*for\s+(?P<item>\w+)\s+in\s+(?P<list>[\w.\[\]]+)\s*-?%\}(?P<body>(?:(?!\{%).)*)"
    r"\{%-?\s*endfor\s*-?%\}"
)
_FILE = r"(?m)(?<=[:-] )!file\s+(['\"]?)(?P<path>[^\s'\"]+)\1(?=\s*$)"
_CLOSES = r"(?a)\{%[-+]?\s*(?:else|elif|end\w+)\b"
_GIT = r"\bgit\s+(?:-C\s+\S+\s+)?(?:commit|push|checkout|switch|merge|rebase|worktree|tag|stash)\b"
_GIT_FILES = (
    rf"{_GIT}|\bgh\s+pr\s+checkout\b"
    r"|\bgit\s+(?:-C\s+\S+\s+)?(?:add|am|cherry-pick|fetch|mv|pull|reset|restore|revert|rm)\b"
)
"""Commands that write into `.git`, which is read-only in a step."""
_OWN_FOLDERS = r"(?a)(?<![\w./])(?:/tmp|~|\$\{?HOME\}?)/[\w./-]*\w"
_OF_GIT = "commits and branches of git are made by a `deliver` step; other steps cannot write `.git`"
_WEB = r"\bWeb(?:Search|Fetch)\b|(?i:\bsearch (?:the )?(?:web|internet)\b)"
_NETWORK = (
    rf"{_WEB}|\b(?:gh|curl|wget|npm|npx|pnpm|yarn|pip|docker|ssh)\s|\bgit\s+(?:push|fetch|pull|clone)\b"
)
_LISTED = r"""(?<=\w)['"`]\s*,\s*\[?\s*['"`](?=\w)"""
"""What separates the words of a program that a script starts: `"git", ["push"`."""
_ONLINE = rf"{_NETWORK}|\bfetch\(|\b(?:requests|httpx|urllib|aiohttp)\b|[A-Z]_(?:TOKEN|API_KEY)\b"
_PROSE = (
    r"(?i:\b(?:then|and)\s+(?:commit|push)\b|\bcommit\s+(?:it|all|each|every|the|these|this|your)\b"
    r"|\b(?:open|create)\s+(?:a|the)\s+(?:draft\s+)?(?:pr|pull request)\b)"
)
_VARIABLE = r"(?a)(?<!\\)\$\{?([A-Z][A-Z0-9_]{2,})\b"
_ASSIGNED = r"(?a)\b(?:(?:read(?: -\w+)*|for|export|local|declare)\s+|(?=\w+=))([A-Z][A-Z0-9_]{2,})\b"
_USUAL = (
    r"HOME|PATH|PWD|OLDPWD|USER|LOGNAME|SHELL|TMPDIR|LANG|TERM|IFS|EUID|UID|PPID|RANDOM|SECONDS|LINENO|REPLY"
    r"|HOSTNAME|FUNCNAME|PIPESTATUS|OPTARG|OPTIND|BASH\w*|FANFOLD_\w+|ARTIFACTS_DIR"
)
"""Variables of every shell."""
_REFUSED = (
    r"\bgit\s+(?:-C\s+\S+\s+)?(?:commit|push|fetch|pull|clone)\b"
    rf"|\bgh\s+(?:api|auth|issue|pr|release|repo|run|search)\b|{_PROSE}|{_WEB}"
)
"""What no agent does here unless its role allows it."""
_NOT = r"(?i)\b(?:not|never|no|without|don't|before|avoid)\b"
_AS_JSON = r"(?a)\s*\|\s*(?:to)?json(?:\(\))?\Z"
_PATH = r"(?a)[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*"
_Kind = TypeVar("_Kind", Scalar, Mapping, tree.Sequence)


class Loss(Struct, frozen=True, order=True):
    """A part that was not converted: its line, its content, and what to do about it."""

    line: int
    what: str
    why: str = ""
    file: str = ""
    """The file next to the workflow that contains it; empty for the workflow itself."""


class ConversionResult(Struct, frozen=True):
    """A recipe as plain data, and its missing parts."""

    recipe: dict[str, Any]
    lost: list[Loss]
    text: str = ""
    """The recipe as text, if the file already was a recipe; its comments are kept."""


class ForeignFile:
    """One file and the results of reading it."""

    def __init__(
        self, data: bytes, file: str, beside: Callable[[str], bytes | None], roles: Collection[str] = ()
    ) -> None:
        self.file = file
        self.roles = roles
        """Names that a step can use as its role here."""
        self.beside = beside
        """Returns the bytes of another file, relative to this one; None if it does not exist."""
        self.text = data.decode("utf-8", "replace")
        self.lost: list[Loss] = []
        self._read_to: dict[tuple[int, str], int] = {}
        self.given_up: set[int] = set()
        """The positions of lost parts, so that each is reported once."""

    def tree(self) -> Mapping:
        self.text = re.sub(_FILE, self._named_file, self.text)
        found, _, report = parse_yaml(self.text.encode(), self.file, FORMAT)
        if (first := report.first_error) is not None:
            message = f"{self.file}:{first.range.start.line}: {first.message}"
            raise AuthorError("convert.unreadable", message, hint=first.help)
        if not isinstance(found, Mapping):
            raise AuthorError("convert.unreadable", f"{self.file}: the file is not a map of keys")
        return found

    def _named_file(self, tag: re.Match[str]) -> str:
        """Return the text of the file that a `!file` tag of Conductor names, on one line."""
        data = self.beside(tag["path"])
        if data is None or tag["path"].endswith((".yaml", ".yml", ".json")):
            message = f"{self.file}:{self.text.count(chr(10), 0, tag.start()) + 1}: {tag[0]} is not read"
            hint = "write its content into the workflow; texts below the folder of the workflow are read"
            raise AuthorError("convert.unreadable", message, hint=hint)
        return json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False)

    def line(self, node: Node) -> int:
        return self.text.count("\n", 0, node.start) + 1

    def lose_inside(self, node: Node, words: str, what: str, why: str) -> None:
        """Report lost words of a text, at their line; each call reports the next occurrence."""
        key = (node.start, words)
        place = self.text.find(words, self._read_to.get(key, node.start), node.end)
        self._read_to[key] = place + 1 if place >= 0 else node.end
        self.lose(node if place < 0 else self.text.count("\n", 0, place) + 1, what, why)

    def lose(self, at: Node | int, what: str, why: str = "") -> None:
        self.lost.append(Loss(at if isinstance(at, int) else self.line(at), what, why))


class Reader:
    """One object of the file: keys are read, and all other keys are lost."""

    def __init__(self, source: ForeignFile, node: Mapping, what: str) -> None:
        self.source = source
        self.node = node
        self.what = what
        self.taken: set[str] = set()

    def get(self, name: str) -> Node | None:
        self.taken.add(name)
        found = self.node.get(name)
        return None if isinstance(found, Scalar) and found.value is None else found

    def text(self, name: str) -> str:
        found = self._of(Scalar, name, "it is no text")
        return "" if found is None else found.text

    def value(self, name: str) -> Any:
        """Return any value; the caller converts all of it."""
        found = self.get(name)
        return None if found is None else plain(found)

    def whole(self, name: str) -> int | None:
        """Return a whole number."""
        if (value := self.value(name)) is not None and type(value) is not int:
            self.lose(name, "it is not an integer")
        return value if type(value) is int else None

    def bounded(self, name: str, low: int, high: int, why: str) -> int | None:
        """Return a whole number in a range; one outside is changed, and reported with the reason."""
        if (number := self.whole(name)) is not None and not low <= number <= high:
            self.lose(name, why)
        return None if number is None else min(high, max(low, number))

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool | None):
            self.lose(name, "it is neither true nor false")
        return value is True

    def map(self, name: str) -> Mapping | None:
        return self._of(Mapping, name, "it is no object")

    def inner(self, name: str) -> Reader | None:
        found = self.map(name)
        return None if found is None else Reader(self.source, found, f"{self.what}: {name}")

    def objects(self, name: str) -> list[Mapping]:
        found = self._of(tree.Sequence, name, "it is no list")
        return [] if found is None else self._items(Mapping, found, name, "it is no object")

    def texts(self, name: str) -> list[str]:
        found = self.get(name)
        if isinstance(found, Scalar):
            return [found.text]
        listed = self._of(tree.Sequence, name, "it is no list")
        items = [] if listed is None else self._items(Scalar, listed, name, "it is no text")
        return [item.text for item in items]

    def _of(self, kind: type[_Kind], name: str, why: str) -> _Kind | None:
        """Return the value of a key if it has the requested kind; any other value is lost."""
        if (found := self.get(name)) is None or isinstance(found, kind):
            return found
        self.lose(name, why)
        return None

    def _items(self, kind: type[_Kind], found: tree.Sequence, name: str, why: str) -> list[_Kind]:
        """Return the items of a list that have the requested kind; all others are lost."""
        for item in found.items:
            if not isinstance(item, kind):
                self._lose_once(item, f"{self.what}: an item of {name}", why)
        return [item for item in found.items if isinstance(item, kind)]

    def lose(self, name: str, why: str) -> None:
        """Report a key as lost, if it exists."""
        found = self.node.key(name)
        self.taken.add(name)
        if found is not None:
            self._lose_once(found, f"{self.what}: {name}", why)

    def _lose_once(self, at: Node, what: str, why: str) -> None:
        """Report a lost key once, because it may be requested again."""
        if at.start not in self.source.given_up:
            self.source.given_up.add(at.start)
            self.source.lose(at, what, why)

    def heading(self) -> dict[str, Any]:
        """Return a recipe that starts with the name and description of this object."""
        recipe: dict[str, Any] = {"name": slug(self.text("name"))}
        if self.text("description"):
            recipe["description"] = " ".join(self.text("description").split())
        return recipe

    def done(self) -> None:
        """Report all keys that were not read as lost."""
        for word, _ in self.node.entries:
            if word.text not in self.taken:
                self.source.lose(word, f"{self.what}: {word.text}", "recipes have no counterpart")


def step_id(name: str) -> str:
    """Return a name as the id of a step."""
    return (re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "step")[:120]


def slug(name: str) -> str:
    """Return a name as the name of a recipe."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64] or "converted"


def rewrite(
    text: str,
    resolve: Callable[[str], str | None],
    lose: Callable[[str], None],
    lose_form: Callable[[str], None],
) -> str:
    """Return a text with `{{ path }}` placeholders in our names; other placeholders stay text and are lost.

    A loop over a list becomes the list itself; its additions to the items are lost.
    """

    def hole(found: re.Match[str]) -> str:
        inside = re.sub(_AS_JSON, "", found[1].strip())  # values other than text are inserted as JSON anyway
        if (path := resolve(inside) if re.fullmatch(_PATH, inside) else None) is None:
            lose(f"{{{{{found[1]}}}}}")
            return f"\\{{{{{found[1]}}}}}"
        return f"{{{{{path}}}}}"

    text = re.sub(_FOR, lambda found: _as_list(found, resolve, lose_form), text)
    for logic in re.findall(r"\{%.*?%\}", text[: _last_end(text, "%}")], re.DOTALL):
        if not re.match(_CLOSES, logic):  # it belongs to the logic that it closes
            lose(logic)
    end = _last_end(text, "}}")
    return _HOLE.sub(hole, text[:end]) + text[end:]


def _as_list(
    found: re.Match[str], resolve: Callable[[str], str | None], lose_form: Callable[[str], None]
) -> str:
    """Return a loop that only shows each item of a list as the list itself; other loops unchanged."""
    path = resolve(found["list"])
    shown = [hole[1].strip() for hole in _HOLE.finditer(found["body"])]
    own = all(re.match(rf"(?:{re.escape(found['item'])}|loop)\b", one) for one in shown)
    if path is None or not shown or not own or "{%" in found["body"]:
        return found[0]
    added = _HOLE.sub("", found["body"]).strip(" \t\r\n-*.):")
    if added or any(one not in (found["item"], "loop.index", "loop.index0") for one in shown):
        lose_form(found[0].partition("%}")[0] + "%}")
    return f"{{{{ {found['list']} }}}}"


def program_rights(text: str) -> dict[str, Any]:
    """Return the permissions that a program needs here and has by default elsewhere: files and network.

    A step cannot write `.git`, so one that commits, fetches or changes branches must be written by hand.
    """
    rights: dict[str, Any] = {"write_set": ["**/*"]}
    text = re.sub(_LISTED, " ", text)
    if re.search(_ONLINE, text):
        rights["network"] = True
    if re.search(_GIT_FILES, text):
        rights[UNWRITTEN] = _OF_GIT
    elif re.search(r"(?m)[^&|>]&[ \t]*$", text) and not re.search(r"\bwait\b", text):
        rights[UNWRITTEN] = "a process in the background ends with its step"
    return rights


def not_for_agents(prompt: str) -> list[tuple[str, str]]:
    """Return requests in a prompt that agents cannot do here: the words, and what to do instead."""
    asked = (
        (rf"{_GIT}|{_PROSE}", "commits and branches of agents are not kept: a `deliver` step makes them"),
        (_NETWORK, "agents reach the network only with a role that allows it"),
    )
    return [(found, why) for words, why in asked if (found := _requested(words, prompt))]


def is_refused(prompt: str) -> bool:
    """Return whether a prompt requests commits, pull requests or the network, which need a role or a step."""
    return bool(_requested(_REFUSED, prompt))


def _requested(words: str, prompt: str) -> str:
    """Return the first match in a prompt that no word before it on its line forbids."""
    for found in re.finditer(words, prompt):
        before = prompt[max(0, found.start() - 40) : found.start()].rpartition("\n")[2]
        if re.search(_NOT, before) is None:
            return " ".join(found[0].split())
    return ""


def not_for_programs(step: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same for a command, which sees neither the user's folder nor environment variables."""
    command = " ".join((step.get("shell", ""), *step.get("run", ()), *map(str, step.get("env", {}).values())))
    why = "commands cannot use your login: name `GH_TOKEN` in `env_vars`"
    words = re.sub(_LISTED, " ", command)
    found = [("gh", why)] if re.search(r"\bgh\s+[a-z]", words) else []
    if (writes := re.search(_GIT_FILES, words)) is not None:
        found.append((" ".join(writes[0].split()), _OF_GIT))
    why = "each step has an empty home and /tmp of its own: keep files in artifacts"
    found += [(path, why) for path in dict.fromkeys(re.findall(_OWN_FOLDERS, command))]
    code = re.sub(r"'[^']*'", "''", command)
    own = {*re.findall(_ASSIGNED, code), *step.get("inputs", ()), *step.get("env", ())}
    read = dict.fromkeys(name for name in re.findall(_VARIABLE, code) if not re.fullmatch(_USUAL, name))
    return found + [(f"${name}", f"commands do not get your variables: name `{name}` in `env_vars`")
                    for name in read if name not in own]  # fmt: skip


def unread(condition: str) -> str:
    """Return an expression that `check` refuses, in place of a condition that could not be read."""
    return f"{UNWRITTEN}({json.dumps(condition, ensure_ascii=False)})"


def is_whole(text: str) -> bool:
    """Return whether a rewritten text has no syntax left that only the other system understands."""
    return "\\{{" not in text and not ("{%" in text and "%}" in text)


def holes_of(text: str) -> list[re.Match[str]]:
    """Return all `{{ }}` placeholders."""
    return list(_HOLE.finditer(text, 0, _last_end(text, "}}")))


def _last_end(text: str, sign: str) -> int:
    """Return the last possible end of a construct, because a search after it would scan the rest in vain."""
    return text.rfind(sign) + len(sign)


# -----------------------------------------------------------------------------------------------------------
# Conditions and values of other languages as CEL: names, operators, quotes. Anything else is not converted.

NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
"""The longest number that expressions certainly accept."""
_TOKEN = re.compile(
    rf"\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>{NUMBER})"
    r"|(?P<path>\$?[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*)(?P<length>\s*\|\s*length\b)?"
    r"|(?P<sign>===|!==|==|!=|<=|>=|&&|\|\||<|>|!|\(|\)|\[|\]|,|-))",
    re.ASCII,
)
_VALUES = {one: one.lower().replace("none", "null") for one in "true false True False null None none".split()}
_RESERVED = frozenset({"and", "or", "not", "in", "is", "if", "else"})
_COMPARISONS = {one: one for one in ("==", "!=", "<=", ">=", "<", ">", "in")} | {"===": "==", "!==": "!="}
_MAX_DEPTH = 50
_ESCAPE = r"\\(.)"
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_LITERAL = rf"""'[^'\\]*'|"[^"\\]*"|-?{NUMBER}|true|false"""
_OTHERWISE = (
    rf"(?a)(?P<path>[\w.\[\]-]+)\s*(?:\|\s*default\(\s*(?P<given>{_LITERAL})\s*(?:,\s*true\s*)?\)"
    rf"|or\s+(?P<or>{_LITERAL}))"
)
_IF, _ELSE = (re.compile(rf"(?<!\s)\s+{word}\s") for word in ("if", "else"))


def to_cel(text: str, resolve: Callable[[str], str | None]) -> str | None:
    """Return the condition as our expression; None if a part has no counterpart here."""
    inside = text.strip()
    if inside.startswith("{{") and inside.endswith("}}"):
        inside = inside[2:-2].strip()
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(inside):
        if (found := _TOKEN.match(inside, at)) is None:
            return None
        tokens.append(found)
        at = found.end()
    try:
        return _Condition(tokens, resolve).read()
    except _NoCounterpartError:
        return None


class _NoCounterpartError(Exception):
    """A part that is not a condition here."""


class _Condition:
    """Parses a condition by precedence: `or`, `and`, `not`, one comparison, values."""

    def __init__(self, tokens: list[re.Match[str]], resolve: Callable[[str], str | None]) -> None:
        self._tokens = tokens
        self._resolve = resolve
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        found = self._either()
        self._require(self._at == len(self._tokens))
        return found

    def _require(self, holds: bool) -> None:
        if not holds:
            raise _NoCounterpartError

    def _next(self) -> str:
        return self._tokens[self._at][0].strip() if self._at < len(self._tokens) else ""

    def _takes(self, *words: str) -> bool:
        found = self._next() in words
        self._at += found
        return found

    def _joined(self, part: Callable[[], str], sign: str, *words: str) -> str:
        parts = [part()]
        while self._takes(*words):
            parts.append(part())
        return f" {sign} ".join(parts)

    def _either(self) -> str:
        return self._joined(lambda: self._joined(self._negated, "&&", "and", "&&"), "||", "or", "||")

    def _negated(self) -> str:
        turned = False
        while self._takes("not"):
            turned = not turned
        found = self._compared()
        return f"!({found})" if turned else found

    def _compared(self) -> str:
        left = self._value()
        if self._takes("is"):
            sign = "!=" if self._takes("not") else "=="
            self._require(self._takes("none", "None", "null"))
            return f"{left} {sign} null"
        if self._takes("not"):
            self._require(self._takes("in"))
            return f"!({left} in {self._value()})"
        sign = self._next()
        if sign not in _COMPARISONS:
            return left
        self._at += 1
        return f"{left} {_COMPARISONS[sign]} {self._value()}"

    def _value(self) -> str:
        self._depth += 1
        self._require(self._depth <= _MAX_DEPTH)
        found = self._one_value()
        self._depth -= 1
        return found

    def _one_value(self) -> str:
        if self._takes("!"):
            return f"!{self._value()}"
        if self._takes("("):
            found = self._either()
            self._require(self._takes(")"))
            return f"({found})"
        if self._takes("["):
            items = [] if self._next() == "]" else [self._value()]
            while items and self._takes(","):
                items.append(self._value())
            self._require(self._takes("]"))
            return f"[{', '.join(items)}]"
        minus = "-" if self._takes("-") else ""
        self._require(self._at < len(self._tokens))
        token = self._tokens[self._at]
        self._at += 1
        if token["number"] is not None:
            return minus + token["number"]
        self._require(not minus and token["sign"] is None)
        if token["string"] is not None:
            text = token["string"][1:-1]
            # Escapes that differ between the languages are not converted.
            self._require(all(one in _ESCAPED for one in re.findall(_ESCAPE, text)))
            return cel_text(re.sub(_ESCAPE, lambda found: _ESCAPED[found[1]], text))
        path = token["path"]
        word = None if path in _RESERVED else _VALUES.get(path) or self._resolve(path)
        if word is None:
            raise _NoCounterpartError
        word = in_expression(word) if "." in word else word
        return f"size({word})" if token["length"] else word


def cel_text(text: str) -> str:
    """Return a text in the notation of expressions, on one line and without forbidden characters."""
    quoted = json.dumps(text, ensure_ascii=False)
    return FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def to_value(text: str, resolve: Callable[[str], str | None]) -> str | None:
    """Return the value of a text as CEL; None if a part has no counterpart here."""
    if "{%" in text:
        return None
    if not (holes := holes_of(text)):
        return cel_text(text)
    if len(holes) == 1 and holes[0][0] == text.strip():
        return _expression(holes[0][1].strip(), resolve)
    parts: list[str] = []
    at = 0
    for hole in holes:
        if (found := _expression(hole[1].strip(), resolve)) is None:
            return None
        before = text[at : hole.start()]
        parts += [cel_text(before)] if before else []
        parts.append(f"string({found})")
        at = hole.end()
    parts += [cel_text(text[at:])] if text[at:] else []
    return " + ".join(parts)


def _expression(text: str, resolve: Callable[[str], str | None], depth: int = 0) -> str | None:
    if depth > _MAX_DEPTH:
        return None
    if (otherwise := re.fullmatch(_OTHERWISE, text)) is not None:
        if (path := resolve(otherwise["path"])) is None:
            return None
        name = in_expression(path)
        # An empty value counts as missing only for `or`.
        instead = to_cel(otherwise["given"] or otherwise["or"], resolve)
        missing = f"{name} == null" if otherwise["given"] else f'{name} == null || {name} == ""'
        return f"{missing} ? {instead} : {name}"
    when = _IF.search(text)
    other = None if when is None else _ELSE.search(text, when.end())
    if when is not None and other is not None:
        words = (text[when.end() : other.start()], text[: when.start()], text[other.end() :])
        parts = [_expression(word.strip(), resolve, depth + 1) for word in words]
        return None if None in parts else f"({parts[0]}) ? ({parts[1]}) : ({parts[2]})"
    if re.search(r"(?<![\w'\"])(?:or|and)(?![\w'\"])", text):
        return None  # `or` and `and` of values, not of conditions: the result depends on empty values
    return to_cel(text, resolve)


# -----------------------------------------------------------------------------------------------------------
# Conversion of consecutive steps to a loop: other steps then read the output of the loop.

_REFERENCE = r"(?a)(?<![\w.])steps\.([A-Za-z0-9][\w-]*)\.output((?:\.[\w-]+|\[\d+\])*)"
_LOOPS_HOLE = r"(?a)(?<!\\)\{\{\s*steps\.([A-Za-z0-9][\w-]*)\.output((?:\.[\w-]+|\[\d+\])*)\s*\}\}"


class FoundLoop(Struct, frozen=True):
    """Steps that are repeated until an expression is true."""

    inside: tuple[str, ...]
    """Their ids, in order."""
    until: str
    most: int
    goes_on: bool = False
    """Whether the following steps run even if it never becomes true."""


def as_loop(
    steps: list[dict[str, Any]], loop: FoundLoop, output: dict[str, str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the steps with those of the loop in a group, and the recipe's output with new references."""
    ids = [step["id"] for step in steps]
    start, end = ids.index(loop.inside[0]), ids.index(loop.inside[-1])
    inner = steps[start : end + 1]
    name = f"{in_expression(loop.inside[0])}_loop"
    inside = {step["id"] for step in inner}
    moved: tuple[str, ...] = ("depends_on", "when")
    outer = {key: inner[0].pop(key) for key in moved if key in inner[0]}
    group: dict[str, Any] = {"id": name, **outer}
    group["repeat"] = {"until": loop.until, "max_iterations": loop.most}
    if loop.goes_on:
        group["repeat"]["on_exhausted"] = "continue"
    group["steps"] = inner
    group["output"] = {step["id"]: f"steps.{step['id']}.output" for step in inner}
    rest = [_renamed(step, inside, name) for step in steps[end + 1 :]]
    return [*steps[:start], group, *rest], _renamed(output, inside, name)


def referred(text: str) -> list[str]:
    """Return the steps whose output a text refers to."""
    return [found[1] for found in re.finditer(_REFERENCE, text)]


def looking_back(value: Any, later: list[str], inside: Collection[str], lose: Callable[[str], None]) -> Any:
    """Return a value without references to later steps; in a loop they refer to the previous round.

    Elsewhere they stay as text and are lost.
    """
    if isinstance(value, dict):
        return {key: looking_back(one, later, inside, lose) for key, one in value.items()}
    if isinstance(value, list):
        return [looking_back(item, later, inside, lose) for item in value]
    if not isinstance(value, str):
        return value

    def hole(found: re.Match[str]) -> str:
        if found[1] not in later:
            return found[0]
        if found[1] in inside:
            return f"{{{{feedback.{found[1]}{found[2]}}}}}"
        lose(found[0])
        return f"\\{found[0]}"

    return re.sub(_LOOPS_HOLE, hole, value)


def _renamed(value: Any, inside: set[str], group: str) -> Any:
    if isinstance(value, dict):
        renamed: dict[str, Any] = {
            key: list(dict.fromkeys(group if word in inside else word for word in inner))
            if key == "depends_on" and isinstance(inner, list)
            else _renamed(inner, inside, group)
            for key, inner in value.items()
        }
        return renamed
    if isinstance(value, list):
        return [_renamed(item, inside, group) for item in value]
    if isinstance(value, str):
        for name in sorted(inside, key=len, reverse=True):
            for spelled, named in ((name, group), (in_expression(name), in_expression(group))):
                value = value.replace(f"steps.{spelled}.output", f"steps.{named}.output.{spelled}")
                value = value.replace(f"steps.{spelled}.status", f"steps.{named}.status")
    return value
