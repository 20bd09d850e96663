"""Read Markdown as far as checking it needs: fenced blocks, transcripts in them, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`]*)$")
HEADING = re.compile(r"^#{1,6} +(?P<title>.*?) *#*$")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which its text begins."""

    language: str
    text: str
    line: int


@dataclass
class Command:
    """One `$ …` line of a transcript with what it should print and its exit status."""

    text: str
    line: int
    output: list[str] = field(default_factory=list)
    status: int = 0


def blocks(page: str) -> Iterator[Block]:
    opening: re.Match[str] | None = None
    body: list[str] = []
    start = 0
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None:
            if fence:
                opening, body, start = fence, [], number + 1
        elif fence and not fence["info"].strip() and len(fence["ticks"]) >= len(opening["ticks"]):
            words = opening["info"].split()
            yield Block(words[0] if words else "", "\n".join(body) + "\n", start)
            opening = None
        else:
            body.append(line.removeprefix(opening["indent"]))


def transcript(block: Block) -> list[Command]:
    """The commands of a `console` block.

    Lines after a command are its output. `$ echo $?` states the exit status of the command before it:

    >>> transcript(Block("console", "$ fanfold check x.yaml\\n$ echo $?\\n6\\n", 1))
    [Command(text='fanfold check x.yaml', line=1, output=[], status=6)]
    """
    commands: list[Command] = []
    asked_for_status = False
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line == "$ echo $?":
            asked_for_status = True
        elif line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ "), number))
        elif asked_for_status:
            commands[-1].status = int(line)
            asked_for_status = False
        elif commands:
            commands[-1].output.append(line)
        else:
            raise ValueError(f"line {number}: output without a command before it")
    return commands


def prose(page: str) -> str:
    """The page with fenced blocks emptied; lines keep their numbers."""
    lines = page.splitlines()
    for block in blocks(page):
        for offset in range(block.text.count("\n")):
            lines[block.line - 1 + offset] = ""
    return "\n".join(lines)


def links(page: str) -> Iterator[tuple[int, str]]:
    """Line and target of each inline link outside code."""
    for number, line in enumerate(prose(page).splitlines(), start=1):
        for link in LINK.finditer(CODE_SPAN.sub("", line)):
            yield number, link["target"]


def anchors(page: str) -> set[str]:
    """The fragments that headings of the page answer to, as code hosts derive them."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        heading = HEADING.match(line)
        if heading:
            slug = re.sub(r"[^\w\- ]", "", heading["title"].lower()).replace(" ", "-")
            again = 0
            while (candidate := slug if not again else f"{slug}-{again}") in found:
                again += 1
            found.add(candidate)
    return found
