"""Adds two numbers; the recipe fixes the mistake."""


def add(a, b):
    return 0
