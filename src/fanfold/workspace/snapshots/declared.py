"""Which new files that the project ignores come home all the same, because the step was asked for them.

An ignored file is no part of a snapshot, and most that programs leave are caches. But a step whose write-set
names one was made to write it, and would lose its work.

Rules
* A pattern that matches everything asks for nothing in particular: it brings no ignored file home.
* A pattern reaches into an ignored folder only by naming it: `build/**` brings what is in an ignored `build`,
  `src/**` nothing of an ignored `src/build`.
* A file that the project has already is nobody's to replace unseen. Named by its own name, by an ending or by
  its ignored folder it is a conflict; one that a wildcard merely happens to match is left behind, else a
  program that compiles beside its sources could run only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fanfold.kernel.paths import matches
from fanfold.kernel.sets.globs import Glob, read_glob
from fanfold.workspace.files.ignored import Ignoring


def asked_for(
    paths: Iterable[str], write_set: Sequence[str], ignoring: Ignoring, nested: Sequence[str]
) -> set[str]:
    """Those of the ignored files that the write-set asks for. `nested` are the inner repositories."""
    globs = [glob for glob in map(read_glob, write_set) if glob.exact or not glob.subtree or any(glob.head)]
    by = {path: [glob for glob in globs if matches([glob.text], path)] for path in paths}
    by = {path: found for path, found in by.items() if found}
    if not by:
        return set()
    closed = ignoring.ignored({f"{folder}/" for path in by for folder in _above(path)}, nested)
    asked: set[str] = set()
    for path, found in by.items():
        folder = next((one for one in _above(path) if one + "/" in closed), "")
        reaching = [glob for glob in found if not folder or _reaches(glob, folder)]
        named = bool(folder and reaching) or any(_names(glob) for glob in reaching)
        if named or (reaching and not ignoring.is_there(path)):
            asked.add(path)
    return asked


def _above(path: str) -> list[str]:
    """The folders a path is in, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _reaches(glob: Glob, folder: str) -> bool:
    """Whether a pattern spells out the way to a folder."""
    head = "/".join(glob.head)
    return head == folder or head.startswith(folder + "/")


def _names(glob: Glob) -> bool:
    """Whether a pattern says more of a file than where it is."""
    return not glob.subtree and bool(glob.text.rpartition("/")[2].strip("*"))
