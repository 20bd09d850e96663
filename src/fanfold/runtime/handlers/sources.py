"""The source of a project's handlers as it was when a run was permitted.

Who permits a run permits the Python code that is there at that moment. Agents of the run may change files of
the project, and a function is not confined; so the run remembers what every Python file of the project was,
and a file that has changed since, or was not there, is not run. One that no handler imports may change.

Bounds: 20,000 files of 64 MB. Compiled modules count by their content; bytecode is never used.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

MAX_FILES = 20_000
MAX_FILE_BYTES = 64 * 1024 * 1024


class Sources(Struct, frozen=True, omit_defaults=True):
    """Paths are relative to the project's folder."""

    files: dict[str, str] = {}
    """What may be imported: path to digest of the content."""
    handlers: dict[str, str] = {}
    """The file that registers a name, for the names that steps use."""


def read_sources(project: Path, wanted: Collection[str]) -> Sources:
    """What the handlers that steps want may be made of; nothing is imported."""
    if not wanted:
        return Sources()
    from fanfold.runtime.handlers.permitted import digest
    from fanfold.runtime.handlers.registration import is_module_name
    from fanfold.runtime.handlers.search import COMPILED, SOURCE, decorated_names, read, walk

    names = {name for name in wanted if not is_module_name(name)}
    files: dict[str, str] = {}
    handlers: dict[str, str] = {}
    for number, file in enumerate(walk(project, (SOURCE, *COMPILED))):
        if number == MAX_FILES:
            break
        content = read(project, file, MAX_FILE_BYTES)
        if content is None:
            continue  # it will not be imported either
        relative = os.path.relpath(file, project)
        files[relative] = digest(content)
        if names and file.suffix == SOURCE:
            for name in names.intersection(decorated_names(content)):
                handlers.setdefault(name, relative)
    return Sources(files, handlers)
