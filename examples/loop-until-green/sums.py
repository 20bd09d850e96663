"""Adds, once somebody has mended it."""


def add(a, b):
    return 0
