"""What earlier phases of the own run published, read with the file tools as `ctx/wf/<run>/<phase>/…`.

The files lie outside the workspace, where no other path of an agent leads. Another run's are not there for
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanfold.agents.toolbox.confinement import missing
from fanfold.agents.toolbox.files import FileTools
from fanfold.agents.toolbox.search import SearchTools
from fanfold.kernel.plan import JSON

PUBLISHED = "ctx/wf"


class PublishedFiles:
    """The published files of one run; `memory` is the project's `.fanfold`."""

    def __init__(self, memory: Path, run_id: str) -> None:
        self._prefix = f"{PUBLISHED}/{run_id}"
        self._home = memory.joinpath(*PUBLISHED.split("/"), run_id)

    def has(self, args: Mapping[str, Any]) -> bool:
        """Whether a call is about published files."""
        path = args.get("path")
        return isinstance(path, str) and (path == PUBLISHED or path.startswith(f"{PUBLISHED}/"))

    def locate(self, path: str) -> tuple[Path, str]:
        """The folder of this run's files, and the path there; what is not of this run is missing."""
        inside = path.removeprefix(self._prefix)
        if not path.startswith(self._prefix) or inside[:1] not in ("", "/") or not self._home.is_dir():
            raise missing(path)
        return self._home, inside.lstrip("/") or "."

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """`read_file` or `list_files`."""
        path = str(args["path"]).rstrip("/")
        if name == "list_files" and path == PUBLISHED:
            path = self._prefix
        home, inside = self.locate(path)
        inner = {**args, "path": inside}
        if name == "list_files":
            result = await SearchTools(str(home)).list_files(inner)
        else:
            result = await FileTools(str(home)).call(name, inner)
        if isinstance(result, dict):
            result["path"] = path
            if isinstance(result.get("files"), list):
                result["files"] = [f"{self._prefix}/{one}" for one in result["files"]]
        return result
