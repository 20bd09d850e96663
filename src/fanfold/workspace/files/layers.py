"""Open trees of ours that lie one over the other: the lower one whole, the upper one with what differs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from fanfold.workspace.files.beneath import open_top


class OpenLayers:
    """The trees of a base, held open, and which of them has the file of a path."""

    def __init__(self, trees: Sequence[Path], is_above: Callable[[str], bool]) -> None:
        self._handles: list[int] = []
        try:
            for tree in trees:
                self._handles.append(open_top(tree))
        except OSError:
            self.__exit__()
            raise
        self._is_above = is_above

    def at(self, path: str) -> int:
        """The tree to look into: what it has not got is not there."""
        return self._handles[0] if len(self._handles) == 1 or self._is_above(path) else self._handles[1]

    def split(self, paths: Iterable[str]) -> list[tuple[int, list[str]]]:
        """These paths by the tree that has them."""
        found: dict[int, list[str]] = {}
        for path in paths:
            found.setdefault(self.at(path), []).append(path)
        return list(found.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)
