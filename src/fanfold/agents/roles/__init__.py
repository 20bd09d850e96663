"""Roles: named agent definitions, the files they come from, and what these may say."""
