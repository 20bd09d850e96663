"""The cookbook page, put together from the examples: what each is for, how it is run, and its recipe."""

from __future__ import annotations

from tools.tidy import ROOT

_HEAD = """\
# Cookbook

Complete recipes for common jobs. Each stands in [`examples/`](../examples) with a script that plays its
agents, so that it runs without a model: copy the folder, try it, then leave `--script` away and change the
prompts. The tests run all of them.
"""


def cookbook() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for recipe in sorted((ROOT / "examples").glob("*/recipe.yaml")):
        lines = recipe.read_text("utf-8").splitlines()
        commands = [line.removeprefix("# $ ") for line in lines if line.startswith("# $ ")]
        body = "\n".join(line for line in lines if not line.startswith("# ")) + "\n"
        said = next(line for line in lines if line.startswith("description: ")).removeprefix("description: ")
        name = recipe.parent.name
        parts.append(f"## {name}\n\n{said} ([files](../examples/{name})).\n")
        parts.append("```sh\n" + "\n".join(commands) + "\n```\n")
        others = [one for one in sorted(recipe.parent.glob("*.yaml")) if one.stem not in ("recipe", "script")]
        parts += [f"```yaml\n# {one.name}\n{one.read_text('utf-8')}```\n" for one in others]
        parts.append(f"```yaml\n{body}```\n")
    return "\n".join(parts)
