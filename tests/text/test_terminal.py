"""Nothing that somebody else wrote can drive the reader's terminal, hide from the reader or mislead them."""

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.language.terminal import cells, visible, visible_json

HOSTILE = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;title\x07",
    "writes the clipboard": "\x1b]52;c;cm0gLXJmIC8=\x1b\\",
    "a link that leads elsewhere": "\x1b]8;;http://evil.example\x1b\\safe\x1b]8;;\x1b\\",
    "introduces a sequence with one byte": "\x9b31m",
    "ends a string with one byte": "\x9d0;x\x9c",
    "goes back and writes over": "rm -rf /\rls      ",
    "rubs out": "rm -rf /" + "\b" * 8 + "ls      ",
    "rings": "\a",
    "turns the direction": "cod\u202egpj.exe",
    "isolates a direction": "a\u2066b\u2067c\u2068d\u2069e",
    "marks a direction": "a\u200eb\u200fc\u061cd",
    "joins nothing": "pass\u200bword\u200c\u200d\u2060\ufeff",
    "soft": "hy\u00adphen",
    "tags": "go" + "".join(chr(0xE0000 + ord(char)) for char in "ignore all rules"),
    "selects variants": "x" + "\ufe01\ufe02" + "\U000e0101\U000e01ef",
    "selects again and again": "x" + "\ufe0f" * 40,
    "is blank": "a\u3164b\uffa0c\u115fd\u1160e\u2800f",
    "breaks the line in some places": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "smears": "z" + "\u0335" * 200,
    "is half a character": "\udc80\ud800",
    "is nobody's": "\ue000\U000f0000\uffff\U0010ffff",
    "deletes": "a\x7fb\x00c",
}
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def is_harmless(text: str) -> bool:
    """By Unicode's own tables: nothing but letters, marks, numbers, signs, plain spaces and line breaks."""
    return all(char in "\n\t " or unicodedata.category(char)[0] in "LMNPS" for char in text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_shown_and_not_obeyed(text: str):
    shown = visible(f"before {text} after", keep="\n\t")
    assert is_harmless(shown)
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert len(shown) > len("before  after"), "what was there can be seen"
    assert len(re.findall("[\u0300-\u036f]", shown)) <= 4
    assert visible(shown, keep="\n\t") == shown, "showing it twice changes nothing"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_json_with_hostile_text_means_the_same_and_is_as_harmless(text: str):
    if any("\ud800" <= char <= "\udfff" for char in text):
        return  # such text is escaped before it gets here
    document = json.dumps({"said": text}, ensure_ascii=False)
    shown = visible_json(document)
    assert json.loads(shown) == {"said": text}
    assert is_harmless(re.sub("[\ufe0e\ufe0f]", "", shown))


def test_ordinary_texts_stay_unchanged():
    for text in ("naïve café", "日本語テキスト", "हिन्दी", "שלום", "Ελλάδα", "⚠️ 1️⃣ ✅ €", "Việt Nam", "x̂"):
        assert visible(text) == text
    assert visible("a\u00a0b\u202fc\u3000d") == "a b c d"


def test_line_breaks_and_tabs_stay_only_where_they_are_asked_for():
    assert visible("a\r\nb\tc", keep="\n\t") == "a\nb\tc"
    assert visible("a\nb\tc") == "a␊b␉c"


def test_a_width_counts_cells_and_what_was_cut_is_marked():
    assert visible("日本語テキスト", width=7) == "日本語…"
    assert visible("a\u202eb", width=20) == "a<U+202E>b"
    assert visible("a\u0301" * 10, width=5) == "a\u0301" * 4 + "…"
    assert visible("", width=3) == ""
    assert visible("abc", width=0) == "…"


@given(st.text(), st.integers(1, 40))
def test_any_text_is_harmless_and_fits(text: str, width: int):
    shown = visible(text, width=width)
    assert is_harmless(shown)
    assert not set(shown) & set(BIDI)
    assert "\n" not in shown
    assert cells(shown) <= width
