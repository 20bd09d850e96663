"""`feedback` where there is none: in the first round of a loop, and after a round that only failed.

A template leaves such a hole empty. CEL has no such rule: a field of null, or of text, is an error. So an
expression that fails there is evaluated again with something in the place of `feedback` whose fields are
null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fanfold.kernel.plan import JSON
from fanfold.recipe.expressions.usage import Usage, free_uses


def stand_ins(usages: Sequence[Usage], *, asks: bool) -> Iterator[JSON]:
    """What to try in its place, in order; nothing where no field of it is asked for.

    `asks`: the expression asks whether there is a field, to which the answer is no.
    """
    uses = [use for use in free_uses(usages) if use.name == "feedback" and use.parts]
    if not uses:
        return
    if asks:
        yield {}
    fields: dict[str, JSON] = {}
    for use in uses:
        inner = fields
        for word, after in zip(use.parts, (*use.parts[1:], None), strict=True):
            if not isinstance(word, str):
                break
            if not isinstance(after, str):
                inner.setdefault(word, None)
                break
            deeper = inner.get(word)
            if not isinstance(deeper, dict):
                inner[word] = deeper = {}
            inner = deeper
    yield fields
