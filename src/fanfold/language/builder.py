"""Recipes built in code: the same keys as in YAML, the same compiler, the same refusals.

    recipe = Recipe(
        name="greet",
        inputs=[{"name": "who", "required": True}],
        steps=[{"id": "hello", "agent": "explorer", "prompt": "Greet {{inputs.who}}."}],
    )
    recipe.to_yaml()            # the file that would say the same
    Recipe.from_yaml(text)      # and back

A recipe is checked when it is run, or by `check`. It becomes YAML on the way, so a diagnostic points at a
line one can look at; the limits on the size of recipe files do not bind it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON
from fanfold.language.diagnostics import FileRefused
from fanfold.language.json_text import schema_of
from fanfold.language.terminal import shorten
from fanfold.language.tree import plain, resolve
from fanfold.language.yaml_text import BUILT_RECIPE, FORBIDDEN, parse_yaml

if TYPE_CHECKING:
    from fanfold.language.compile import CompileResult
    from fanfold.language.draft import CompileContext

Entry = Mapping[str, Any]
_LOST = (bytes, bytearray, memoryview)
"""Types that JSON would convert to other text."""


class Recipe:
    """A recipe as data; `value` is what its YAML file would hold.

    >>> recipe = Recipe(name="one", steps=[{"id": "a", "prompt": "Say yes"}])
    >>> Recipe.from_yaml(recipe.to_yaml()) == recipe
    True
    """

    __slots__ = ("value",)

    def __init__(  # noqa: PLR0913 - one argument per key of the language
        self,
        *,
        name: str,
        steps: Sequence[Entry] | None = None,
        phases: Sequence[Entry] | None = None,
        description: str | None = None,
        version: int | None = None,
        inputs: Sequence[Entry] | Entry | None = None,
        output: str | Entry | None = None,
        limits: Entry | None = None,
        defaults: Entry | None = None,
        on_failure: str | None = None,
        metadata: Entry | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        given = {
            "name": name, "description": description, "version": version, "inputs": inputs, "limits": limits,
            "defaults": defaults, "on_failure": on_failure, "metadata": metadata, "steps": steps,
            "max_concurrency": max_concurrency, "phases": phases, "output": output,
        }  # fmt: skip
        # A copy with only JSON values, so that later changes of a list do not change the recipe.
        value = {key: one for key, one in given.items() if one is not None}
        try:
            kept = msgspec.to_builtins(value, builtin_types=_LOST, str_keys=True, enc_hook=_schema)
            _refuse_what_json_would_change(kept)
            copied: dict[str, JSON] = msgspec.json.decode(msgspec.json.encode(kept))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            hint = "a recipe is data: text, numbers, lists and maps"
            raise AuthorError(
                "recipe.bad_type", f"the recipe contains a value that is not data: {error}", hint=hint
            ) from None
        self.value: dict[str, JSON] = copied

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Self:
        """Parse a recipe; raises `FileRefused` if the text is not a YAML map."""
        data = text.encode() if isinstance(text, str) else text
        tree, source, report = parse_yaml(data, "recipe", BUILT_RECIPE)
        if tree is None or not report.ok:
            raise FileRefused(report.diagnostics, {source.file: source})
        value = plain(tree)
        if not isinstance(value, dict):
            raise AuthorError(
                "recipe.bad_type", "a recipe is a map of keys", hint="begin with name: and steps:"
            )
        recipe = cls.__new__(cls)
        recipe.value = value
        return recipe

    def to_yaml(self) -> str:
        """Return the recipe as the text of a file."""
        return as_yaml(self.value)

    def compile(self, around: CompileContext, folder: str | os.PathLike[str] = ".") -> CompileResult:
        """Check the recipe and everything it calls; sub-workflows in files are found from `folder`."""
        from fanfold.language.compile import compile_recipe

        file = os.path.join(folder, f"<{self.value.get('name', 'recipe')}>")  # a name that no file has
        return compile_recipe(self.to_yaml().encode(), file, around, form=BUILT_RECIPE)

    @property
    def name(self) -> str:
        return str(self.value.get("name", ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # its value can be changed, as a dict's can

    def __repr__(self) -> str:
        return f"Recipe(name={self.name!r})"


def _schema(value: object) -> JSON:
    """Return the JSON Schema of a class in the place of a schema (`output_schema`)."""
    if not isinstance(value, type):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return schema_of(value)


def _refuse_what_json_would_change(value: object) -> None:
    """Refuse bytes, which would become other text, and numbers that would become null."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _refuse_what_json_would_change(item)
    elif isinstance(value, _LOST) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError(shorten(repr(value), 80))


def as_yaml(value: JSON) -> str:
    """Return a recipe as YAML text that our own parser reads back as the same data."""
    import yaml

    class Dumper(yaml.CSafeDumper):
        """Block style, long texts in readable form, and quotes around text that looks like a number."""

        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        if value and (FORBIDDEN.search(value) or (style is None and _means_something_else(value))):
            style = '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    written: str = yaml.dump(
        value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1, indent=2
    )
    return written


def _means_something_else(text: str) -> bool:
    try:
        return resolve(text) != text
    except ValueError:
        return True
