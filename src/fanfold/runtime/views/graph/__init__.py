"""The graph of a recipe as a picture: laid out, and drawn as Mermaid text or SVG."""
