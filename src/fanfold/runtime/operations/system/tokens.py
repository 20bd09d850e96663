"""Tokens for a server that others can reach: made here, known to the server by their digests alone.

A token is 256 random bits, so SHA-256 is enough: a slow hash is for passwords, which people choose.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from pathlib import Path

from msgspec import Struct


class NewToken(Struct, frozen=True):
    """`line` is what lets it in, when it stands in `[server]` of the user's own configuration."""

    token: str
    digest: str
    line: str
    file: str


def new_token() -> str:
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return "sha256:" + sha256(token.encode("utf-8", "replace")).hexdigest()


def make_token(role: str, home: Path) -> NewToken:
    """A token for a role, `operator` or `viewer`; `home` is the user's own folder."""
    token = new_token()
    return NewToken(token, digest_of(token), f'{role}s = ["{digest_of(token)}"]', str(home / "config.toml"))
