"""Regular expressions that are compiled late are otherwise as any."""

import re

import pytest

from fanfold.text.patterns import regex


def test_a_pattern_is_compiled_when_it_is_first_used() -> None:
    broken = regex("(")
    assert broken.pattern == "("
    with pytest.raises(re.error):
        broken.match("x")


def test_it_matches_as_it_is_written_texts_and_bytes_alike() -> None:
    word = regex("[a-z]+", re.IGNORECASE)
    assert word.fullmatch("Word")
    assert not word.fullmatch("2 words")
    assert word.sub("_", "a1b") == "_1_"
    assert word.flags & re.IGNORECASE
    assert regex(b"^b", re.MULTILINE).findall(b"b\nb") == [b"b", b"b"]
