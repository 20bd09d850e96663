"""Redaction: no secret goes into a log, an output or an error.

Rules
* Two kinds of secrets are known: values (the keys this process was given) and shapes (text that looks like
  the key of a well-known service, whoever's it is).
* Values are nobody's business: they are taken out of what is recorded and of what a model is told. Shapes are
  taken out of what is recorded only. A model that edits a file with a key in it must see the file as it is,
  or it would write the mark back into it.
* Redaction never fails and never changes anything but text. What holds no secret comes back as the same
  object, so the usual case costs one search.
* Text is shortened in many places, and a cut may go through a value: what is left of it before the end of
  the text, or before the mark of a cut, goes too when it is half of the value or more.
* Stores are given `encoded`, which every byte passes on its way to the disk: whoever forgets to redact what
  it records leaks nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TypeVar

import msgspec

from fanfold.agents.providers import key_variables
from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import CUT
from fanfold.text.patterns import regex

MARK = "[redacted]"
MIN_SECRET_CHARS = 8
MIN_OTHER_CHARS = 16
MIN_CUT_CHARS = 12

# Anywhere in the name, as a word of its own or at the end of one: AUTHTOKEN, API_KEY_2, but not KEYBOARD.
_NAMES = regex(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|WEBHOOK|MNEMONIC|BEARER|JWT"
    r"|AUTHORIZATION|(?:^|_)(?:AUTH|CRED|PAT|PASS|DSN))S?(?=_|\d|$)|_PWD(?=_|$)|CONNECTION_STRING"
)
# What stands before a shape must not be part of a longer word: signatures and hashes of providers are long
# runs of the same characters and have to survive.
_SHAPES = r"""(?<![A-Za-z0-9_\-])(?:
        sk-[A-Za-z0-9_\-]{16,}              # OpenAI, Anthropic and many that copied them
      | (?:AKIA|ASIA)[0-9A-Z]{16}           # AWS
      | gh[pousr]_[A-Za-z0-9]{30,}          # GitHub
      | github_pat_[A-Za-z0-9_]{30,}
      | glpat-[A-Za-z0-9_\-]{20,}           # GitLab
      | xox[abposr]-[A-Za-z0-9\-]{10,}      # Slack
      | AIza[A-Za-z0-9_\-]{35}              # Google
      | hf_[A-Za-z0-9]{30,}                 # Hugging Face
      | (?:sk|rk)_live_[A-Za-z0-9]{16,}     # Stripe
      | npm_[A-Za-z0-9]{36}
      | pypi-[A-Za-z0-9_\-]{50,}
      | eyJ[A-Za-z0-9_\-]{10,}\.eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}   # JSON web tokens
    )
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)[^\s/:@]{0,64}:[^\s/@]{3,256}(?=@)   # user:password in an address"""
_T = TypeVar("_T", bound=JSON)


@cache
def _shapes() -> re.Pattern[str]:
    """Compiled when a text is looked at: it takes a while, and whoever lists runs looks at none."""
    return re.compile(_SHAPES, re.VERBOSE | re.DOTALL)


def looks_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is nobody's business.

    >>> [looks_secret(name) for name in ("GITHUB_TOKEN", "API_KEY_2", "SENTRY_DSN", "LANG", "PWD")]
    [True, True, True, False, False]
    """
    return name in key_variables() or _NAMES.search(name.upper()) is not None


def holds_secret(text: str) -> bool:
    """Whether a value gives itself away: the key of a well-known service, a password in an address.

    >>> [holds_secret(text) for text in ("postgres://me:pass@host/db", "redis://:pass@host", "https://host/db")]
    [True, True, False]
    """
    return _shapes().search(text) is not None


def without_credentials(url: str) -> str:
    """An address without the user name, password and query that people put into addresses.

    >>> without_credentials("postgres://me:pass@host:99/db?key=secret"), without_credentials("host:7233")
    ('postgres://host:99/db', 'host:7233')
    """
    if "://" not in url and "@" not in url:
        return url.partition("?")[0]
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(not an address)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The secrets of an environment: provider keys, and long values whose name says what they are."""
    values = [
        environment[name] for name in key_variables() if len(environment.get(name, "")) >= MIN_SECRET_CHARS
    ]
    return values + [
        value for name, value in environment.items() if len(value) >= MIN_OTHER_CHARS and looks_secret(name)
    ]


class Redactor:
    """Takes secrets out of text and of JSON values.

    >>> Redactor(["hunter2-hunter2"]).text("the password is hunter2-hunter2, the key sk-abcdefghijklmnop1234")
    'the password is [redacted], the key [redacted]'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        given = {value for value in values if len(value) >= MIN_SECRET_CHARS}
        # As it is, in an address, and inside JSON that is itself a text, in both ways of writing that.
        known = given | {write(value) for value in given for write in (_quoted, _in_json, _in_ascii_json)}
        # Longest first: a secret that begins with another one must go as a whole.
        self._known = sorted(known, key=lambda value: (-len(value), value))
        self._values = re.compile("|".join(map(re.escape, self._known)))
        self._beginnings = tuple(dict.fromkeys(map(_beginning, self._known)))
        self._traces = tuple(_in_json(begins).encode("utf-8", "replace") for begins in self._beginnings)

    @classmethod
    def of(cls, environment: Mapping[str, str], also: Iterable[str | None] = ()) -> Redactor:
        """The secrets of an environment: provider keys, and long values whose name says what they are."""
        return cls([*secrets_of(environment), *(value for value in also if value)])

    def text(self, text: str) -> str:
        """The text without values and shapes."""
        return _shapes().sub(MARK, self.known(text))

    def known(self, text: str) -> str:
        """The text without the values this process was given."""
        for begins in self._beginnings:  # quicker than a pattern, and nearly always all there is to do
            if begins in text:
                return self._cut_short(self._values.sub(MARK, text))
        return text

    def json(self, value: _T, *, shapes: bool = True) -> _T:
        """The value with every text in it redacted, keys of objects included."""
        cleaned: _T = _each(value, self.text if shapes else self.known)
        return cleaned

    def _cut_short(self, text: str) -> str:
        """The text without what is left of values that were cut."""
        for value in self._known:
            begins = _beginning(value)
            at = text.find(begins)
            while at >= 0:
                end = at + len(begins)
                while end < len(text) and end - at < len(value) and text[end] == value[end - at]:
                    end += 1
                if end == len(text) or text.startswith(CUT, end):
                    text = text[:at] + MARK + text[end:]
                    end = at + len(MARK)
                at = text.find(begins, end)
        return text

    def encoded(self, data: bytes) -> bytes:
        """Encoded JSON without the values this process was given.

        >>> Redactor(["hunter2-hunter2"]).encoded(b'["the password is hunter2-hunter2"]')
        b'["the password is [redacted]"]'
        """
        for trace in self._traces:
            if trace in data:
                break
        else:
            return data
        # Bytes alone do not tell: the "n" of a secret may be the end of an escaped line break.
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError:  # plain text
            return self.known(data.decode("utf-8", "replace")).encode()
        clean = _each(value, self.known)
        return data if clean is value else msgspec.json.encode(clean)


def _beginning(value: str) -> str:
    """As much of a value as must not be left of it."""
    return value[: max(MIN_CUT_CHARS, (len(value) + 1) // 2)]


def _quoted(text: str) -> str:
    """The text as it stands in an address."""
    from urllib.parse import quote

    return quote(text, safe="")


def _in_ascii_json(text: str) -> str:
    """The text as it stands in JSON that is written in ASCII alone, as Python does."""
    return json.dumps(text)[1:-1]


def _in_json(text: str) -> str:
    """The text as it stands between the quotes of a JSON string."""
    try:
        return msgspec.json.encode(text)[1:-1].decode()
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON of ours can hold
        return text


def _each(value: JSON, clean: Callable[[str], str]) -> JSON:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        keys = [clean(key) if isinstance(key, str) else key for key in value]
        values = [_each(one, clean) for one in value.values()]
        if _same(value, keys) and _same(value.values(), values):
            return value
        return dict(zip(keys, values, strict=True))
    if isinstance(value, list | tuple):
        items = [_each(one, clean) for one in value]
        return value if _same(value, items) else items
    return value


def _same(before: Iterable[object], after: Iterable[object]) -> bool:
    # A search that finds nothing hands back the text it was given.
    return all(one is other for one, other in zip(before, after, strict=True))
