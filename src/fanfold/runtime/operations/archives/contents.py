"""What a file that holds a run carries: its log as it was committed, its sessions, and the values they name.

Rules
* Secrets of this process are taken out once more: one that was not known when something was recorded may be
  known now. A value that changes so gets another name, and so does all that refers to it.
* Nothing in it says who owned what or what may be done: whoever reads it decides that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from fanfold.kernel.events import Envelope
from fanfold.kernel.nodes import LEAF
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.attempt_sessions import sessions_of
from fanfold.store.protocol import Clean, Store

FORMAT = 1
_NAME = re.compile(rb'"([0-9a-f]{32})"')
_ROUNDS = 20
"""Values name values; one that is renamed renames those around it, but nothing nests deeper than this."""


class RunContents(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`blobs` are texts of JSON by their hash."""

    format: int
    made_by: str
    root: str
    commits: list[list[Envelope]]
    sessions: dict[str, list[Envelope]]
    blobs: dict[str, str]


def read_contents(store: Store, tree: RunTree, version: str) -> RunContents:
    """Everything that is stored of a tree, without the secrets of this process."""
    root = tree.root.id
    commits = [list(commit.envelopes) for commit in store.commits(root)]
    sessions = {name: list(log) for name, log in _sessions(store, tree)}
    texts = [msgspec.json.encode(one.data) for commit in commits for one in commit]
    texts += [msgspec.json.encode(one.data) for log in sessions.values() for one in log]
    blobs, renamed = _without_secrets(_blobs(store, texts), store.clean)

    def cleaned(envelopes: Iterable[Envelope]) -> list[Envelope]:
        return [_cleaned(one, store.clean, renamed) for one in envelopes]

    return RunContents(
        format=FORMAT,
        made_by=version,
        root=root,
        commits=[cleaned(commit) for commit in commits],
        sessions={name: cleaned(log) for name, log in sessions.items()},
        blobs={name: content.decode() for name, content in sorted(blobs.items())},
    )


def _sessions(store: Store, tree: RunTree) -> Iterator[tuple[str, Iterator[Envelope]]]:
    for run in tree.state.runs.values():
        for node in run.nodes.values():
            if node.kind != LEAF:
                continue
            for attempt in range(1, node.attempt + 1):
                for name in sessions_of(store, node, attempt):
                    if next(store.log(name), None) is not None:
                        yield name, store.log(name)


def _blobs(store: Store, texts: Iterable[bytes]) -> dict[str, bytes]:
    """Every value that some texts name, and that those name."""
    found: dict[str, bytes] = {}
    wanted = list(texts)
    while wanted:
        text = wanted.pop()
        for name in {match.decode() for match in _NAME.findall(text)}:
            if name not in found and store.has_blob(name):
                found[name] = store.blob(name)
                wanted.append(found[name])
    return found


def _without_secrets(blobs: dict[str, bytes], clean: Clean) -> tuple[dict[str, bytes], dict[bytes, bytes]]:
    """The values by their names, and what was renamed on the way."""
    renamed: dict[bytes, bytes] = {}
    for _ in range(_ROUNDS):
        fresh: dict[str, bytes] = {}
        before = len(renamed)
        for name, content in blobs.items():
            cleaned = _with_new_names(clean(content), renamed)
            new = name if cleaned == content else blake2b(cleaned, digest_size=16).hexdigest()
            if new != name:
                renamed[name.encode()] = new.encode()
            fresh[new] = cleaned
        blobs = fresh
        if len(renamed) == before:
            break
    return blobs, renamed


def _with_new_names(text: bytes, renamed: dict[bytes, bytes]) -> bytes:
    if not renamed:
        return text
    return _NAME.sub(lambda match: b'"' + renamed.get(match[1], match[1]) + b'"', text)


def _cleaned(envelope: Envelope, clean: Clean, renamed: dict[bytes, bytes]) -> Envelope:
    data = msgspec.json.encode(envelope.data)
    return structs.replace(envelope, data=msgspec.json.decode(_with_new_names(clean(data), renamed)))
