"""Redaction: no secret gets into a log, an output or an error.

Rules
* There are two kinds of secrets: values (the keys that this process has) and shapes (text that looks like the
  key of a well-known service).
* Values are removed from everything that is recorded and from everything that a model receives. Shapes are
  removed only from recorded text. A model that edits a file with a key must see the file unchanged, or it
  would write the mark into the file.
* Redaction never fails and changes only text. A value without secrets is returned as the same object, so that
  the usual case costs one search.
* Text is shortened in many places, and a cut may be inside a value. A remaining part before the end of the
  text, or before the mark of a cut, is removed if it is at least half of the value.
* Stores use `encoded` for every byte on its way to the disk. So code that forgets to redact its records does
  not leak a value.
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
from fanfold.language.terminal import CUT

MARK = "[redacted]"
MIN_SECRET_CHARS = 8
MIN_OTHER_CHARS = 16
MIN_CUT_CHARS = 12

# Anywhere in the name, as a separate word or at the end of one: AUTHTOKEN, API_KEY_2, but not KEYBOARD.
_NAMES = (
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|WEBHOOK|MNEMONIC|BEARER|JWT"
    r"|AUTHORIZATION|(?:^|_)(?:AUTH|CRED|PAT|PASS|DSN))S?(?=_|\d|$)|_PWD(?=_|$)|CONNECTION_STRING"
)
# A shape must not be part of a longer word. Signatures and hashes of providers are long runs of the same
# characters and must not change.
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
    """Return the pattern, compiled at first use, because it is slow and many commands do not need it."""
    return re.compile(_SHAPES, re.VERBOSE | re.DOTALL)


def looks_secret(name: str) -> bool:
    """Return whether the name of a variable indicates a secret.

    >>> [looks_secret(name) for name in ("GITHUB_TOKEN", "API_KEY_2", "SENTRY_DSN", "LANG", "PWD")]
    [True, True, True, False, False]
    """
    return name in key_variables() or re.search(_NAMES, name.upper()) is not None


def holds_secret(text: str) -> bool:
    """Return whether a value looks like a secret: a key of a well-known service, a password in an address.

    >>> [holds_secret(text) for text in ("postgres://me:pass@host/db", "redis://:pass@host", "https://host/db")]
    [True, True, False]
    """
    return _shapes().search(text) is not None


def without_credentials(url: str) -> str:
    """Return an address without user name, password and query.

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
    """Return the secrets of an environment: provider keys, and long values whose name indicates a secret."""
    values = [
        environment[name] for name in key_variables() if len(environment.get(name, "")) >= MIN_SECRET_CHARS
    ]
    return values + [
        value for name, value in environment.items() if len(value) >= MIN_OTHER_CHARS and looks_secret(name)
    ]


_PARTS = r"""(?x)(?<![\w*])(?:
        [\w\-]*[*•●…]{3,}[\w\-*•●…]*            # sk-ab****wxyz, ****wxyz
      | (?:sk|pk|rk|key|gsk|xai|AIza)[\w\-]*\.{2,}[\w\-]*   # sk-ab...wxyz
    )|(?<=ending\ in\ )\S+|(?<=ends\ with\ )\S+|(?<=starting\ with\ )\S+"""


def without_key_parts(text: str) -> str:
    """Return a provider's message about a key without the quoted part of the key.

    >>> without_key_parts("Incorrect API key provided: sk-ab**********wxyz. See **the docs**.")
    'Incorrect API key provided: [redacted]. See **the docs**.'
    """
    return re.sub(_PARTS, MARK, text)


class Redactor:
    """Removes secrets from text and from JSON values.

    >>> Redactor(["hunter2-hunter2"]).text("the password is hunter2-hunter2, the key sk-abcdefghijklmnop1234")
    'the password is [redacted], the key [redacted]'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        given = {value for value in values if len(value) >= MIN_SECRET_CHARS}
        known = set(given)
        if given:
            from urllib.parse import quote

            # Also as encoded in an address, and inside JSON that is itself a text, in both encodings.
            for value in given:
                known |= {quote(value, safe=""), _in_json(value), json.dumps(value)[1:-1]}
        # Longest first: a secret that starts with another one must be removed as a whole.
        self._known = sorted(known, key=lambda value: (-len(value), value))
        self._values = re.compile("|".join(map(re.escape, self._known)))
        self._beginnings = tuple(dict.fromkeys(map(_beginning, self._known)))
        self._traces = tuple(_in_json(begins).encode("utf-8", "replace") for begins in self._beginnings)

    @classmethod
    def of(cls, environment: Mapping[str, str], also: Iterable[str | None] = ()) -> Redactor:
        """Return a redactor for the secrets of an environment, see `secrets_of`, and for `also`."""
        return cls([*secrets_of(environment), *(value for value in also if value)])

    def text(self, text: str) -> str:
        """Return the text without values and shapes."""
        return _shapes().sub(MARK, self.known(text))

    def known(self, text: str) -> str:
        """Return the text without the values of this process."""
        for begins in self._beginnings:  # faster than a pattern, and sufficient in most cases
            if begins in text:
                return self._cut_short(self._values.sub(MARK, text))
        return text

    def json(self, value: _T, *, shapes: bool = True) -> _T:
        """Return the value with every text in it redacted, including keys of objects."""
        cleaned: _T = _each(value, self.text if shapes else self.known)
        return cleaned

    def _cut_short(self, text: str) -> str:
        """Return the text without the remaining parts of values that were cut."""
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
        """Return encoded JSON without the values of this process.

        >>> Redactor(["hunter2-hunter2"]).encoded(b'["the password is hunter2-hunter2"]')
        b'["the password is [redacted]"]'
        """
        for trace in self._traces:
            if trace in data:
                break
        else:
            return data
        # Bytes are not sufficient: the "n" of a secret may be the end of an escaped line break.
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError:  # plain text
            return self.known(data.decode("utf-8", "replace")).encode()
        clean = _each(value, self.known)
        return data if clean is value else msgspec.json.encode(clean)


def _beginning(value: str) -> str:
    """Return the part of a value that must not remain."""
    return value[: max(MIN_CUT_CHARS, (len(value) + 1) // 2)]


def _in_json(text: str) -> str:
    """Return the text as it is encoded between the quotes of a JSON string."""
    try:
        return msgspec.json.encode(text)[1:-1].decode()
    except UnicodeEncodeError:  # half a surrogate pair, which our JSON cannot contain
        return text


def _each(value: JSON, clean: Callable[[str], str]) -> JSON:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        keys = [clean(key) if isinstance(key, str) else key for key in value]
        values = [_each(item, clean) for item in value.values()]
        if _same(value, keys) and _same(value.values(), values):
            return value
        return dict(zip(keys, values, strict=True))
    if isinstance(value, list | tuple):
        items = [_each(item, clean) for item in value]
        return value if _same(value, items) else items
    return value


def _same(before: Iterable[object], after: Iterable[object]) -> bool:
    # A search without a match returns the original object.
    return all(one is other for one, other in zip(before, after, strict=True))
