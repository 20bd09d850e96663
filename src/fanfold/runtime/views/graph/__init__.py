"""Graphs of recipes and runs as pictures: boxes, their places, and the pictures as SVG or Mermaid text."""
