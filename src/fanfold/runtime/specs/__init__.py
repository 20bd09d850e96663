"""Specs made from a task in words: is it one for a workflow, what is the project like, what could it be."""
