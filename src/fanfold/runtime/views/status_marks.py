"""The sign of each status, wherever one is shown: colour alone would not do."""

from __future__ import annotations

from fanfold.kernel.lifecycle import COMPLETED, PENDING, READY, RUNNING, SKIPPED, WAITING

MARKS = {
    PENDING: ("·", "."),
    READY: ("·", "."),
    RUNNING: ("▸", ">"),
    WAITING: ("?", "?"),
    COMPLETED: ("✓", "+"),
    "failed": ("✗", "x"),
    "timed_out": ("✗", "x"),
    "cancelled": ("⊘", "/"),
    SKIPPED: ("∅", "-"),
}
"""Status → the mark in front of a row, and the same in ASCII."""
