"""The content key of a step: two steps with the same key would be asked the same question.

In the key: the rendered job, the role as frozen with the roles of its stages, what the project tells every
agent, back end and model, the output's shape, and the content of every file the step may read. Change any
of it and the step runs again.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b, file_digest

import msgspec
from msgspec.structs import replace

from fanfold.kernel.nodes import Node
from fanfold.kernel.paths import matches
from fanfold.runtime.records.frozen import Frozen
from fanfold.runtime.steps.registry import type_of
from fanfold.runtime.steps.step_type import Job
from fanfold.workspace.artifacts import ArtifactView

SKIPPED_FOLDERS = frozenset(
    (".git", ".fanfold", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache")
)
MAX_FILES = 20_000


def content_key(node: Node, job: Job, frozen: Frozen, project: str) -> str | None:
    """The key, or None when the read-set holds too many files to be worth reading."""
    try:
        content = _content_of(project, node.read_set)
    except OSError:
        return None  # a file went away while it was read
    if content is None:
        return None
    kind = type_of(node.step)
    step = (msgspec.to_builtins(node.step.action), node.step.output_schema, node.step.outputs)
    facts = (
        type(job).__name__,
        msgspec.to_builtins(replace(job, artifacts=ArtifactView(job.artifacts.seen))),
        kind.circumstances(frozen, kind.read(node.step)),
        step,
        frozen.script,
    )
    return blake2b(msgspec.json.encode((facts, content)), digest_size=16).hexdigest()


def _content_of(project: str, patterns: tuple[str, ...]) -> str | None:
    digest = blake2b(digest_size=16)
    count = 0
    for folder, folders, files in os.walk(project):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(files):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, project)
            if not matches(patterns, relative):
                continue
            content = _content(path)
            if content is None:
                continue
            count += 1
            if count > MAX_FILES:
                return None
            digest.update(relative.encode("utf-8", "surrogateescape") + b"\0")
            digest.update(content)
    return digest.hexdigest()


def _content(path: str) -> bytes | None:
    """What stands for a file: a hash of what is in it, or where a link leads. None for what is neither."""
    if os.path.islink(path):
        return b"-> " + os.fsencode(os.readlink(path))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file_digest(opened, blake2b).digest()
