"""Conversion of other systems' workflows to recipes."""
