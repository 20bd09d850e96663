"""Letters as the search sees them: scripts without spaces, and letters with accents.

The index cuts texts into words at whatever is neither letter nor digit. Chinese, Japanese, Thai and others
put nothing between words, so that a whole sentence would be one. There every letter is a word, and what
somebody looks for is a row of them.
"""

from __future__ import annotations

import re
import unicodedata

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_LETTER = re.compile(f"[{_UNSPACED}]")
_RUNS = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")


def spaced(text: str) -> str:
    """The same with spaces around letters that are words.

    >>> spaced("see 安全").split()
    ['see', '安', '全']
    """
    return text if text.isascii() else _LETTER.sub(r" \g<0> ", text)


def is_unspaced(text: str) -> bool:
    """Whether a text begins in a script without spaces; all of it does, if it is one of `runs`."""
    return _LETTER.match(text) is not None


def runs(text: str) -> list[str]:
    """The pieces of a text that are written with spaces or without, in order.

    >>> runs("ok安全ok")
    ['ok', '安全', 'ok']
    """
    return [text] if text.isascii() else _RUNS.findall(text)


class _Plain(dict[int, int]):
    """Letters without their accents, where that is one letter of ASCII; all others stay."""

    def __missing__(self, code: int) -> int:
        base = unicodedata.normalize("NFD", chr(code))[0]
        self[code] = found = ord(base) if base.isascii() else code
        return found


_PLAIN = _Plain(str.maketrans("øØłŁđĐı", "oOlLdDi"))


def without_accents(text: str) -> str:
    """The same, as long as before, without accents.

    >>> without_accents("Café 검색")
    'Cafe 검색'
    """
    return text if text.isascii() else text.translate(_PLAIN)
