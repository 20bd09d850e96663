"""Words that say nothing about where a text comes from: two texts may share any number of them by chance.

Everyday English, and the vocabulary of this trade: whoever is asked to review a file will say "review" and
"file". The list, `common_words.txt`, only has to be generous. A word too many costs an edge that a person
adds again; a word too few invents one.
"""

from __future__ import annotations

from pathlib import Path

COMMON = frozenset(Path(__file__).with_suffix(".txt").read_text("utf-8").split())
