"""Instructions of a folder, told to an agent with the first file that it reads there.

An agent whose sets lie in that folder was told when it began; this is for the others, which find their way
while they work. What is told is what the run began with, once for each folder and no more than a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import normpath
from typing import Any

from fanfold.agents.instructions import MAX_BYTES, above, point_to
from fanfold.agents.toolbox.catalogue import Tools, ToolsAround
from fanfold.kernel.plan import JSON

KEY = "project_instructions"
READ = "read_file"


class InstructedTools(ToolsAround):
    """The tools of a session in a project whose folders have instructions; `told` are those it knows."""

    def __init__(self, tools: Tools, below: Mapping[str, str], told: str) -> None:
        super().__init__(tools)
        self._left = {folder: text for folder, text in below.items() if text not in told}
        self._bytes_left = MAX_BYTES

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        found = await super().call(name, args)
        if name != READ or not isinstance(found, dict):
            return found
        path = normpath(str(args.get("path", "")))
        texts = [self._tell(folder) for folder in above(path) if folder in self._left]
        return {**found, KEY: "\n\n".join(texts)} if texts else found

    def _tell(self, folder: str) -> str:
        text = self._left.pop(folder)
        size = len(text.encode())
        if size > self._bytes_left:
            return point_to(folder)
        self._bytes_left -= size
        return text
