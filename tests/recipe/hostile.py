"""Recipes made to hurt: each must be answered within a second and 200 MB. Run as a program, it compiles
one of them and prints what it cost."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 256 * 1024


def _fill(line: Callable[[int], str], head: str, room: int = LIMIT - 200) -> str:
    """As many lines as fit into the largest recipe."""
    parts = [head]
    size = len(head)
    for i in range(100_000):
        part = line(i)
        size += len(part.encode())
        if size > room:
            break
        parts.append(part)
    return "".join(parts)


HEAD = "name: hostile\nlimits: {max_steps: 100000}\nsteps:\n"


def alias_bomb() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(lines).encode()


def deep_list() -> bytes:
    return b"name: x\nmetadata: " + b"[" * 3_000 + b"]" * 3_000 + b"\nsteps: []\n"


def nul() -> bytes:
    return b"name: x\nsteps:\n  - {id: a, prompt: 'a\x00b'}\n"


def bom() -> bytes:
    return b"\xef\xbb\xbfname: x\nsteps:\n  - {id: a, prompt: x}\n"


def utf16() -> bytes:
    return "name: x\nsteps:\n  - {id: a, prompt: x}\n".encode("utf-16")


def tabs() -> bytes:
    return b"name: x\nsteps:\n\t- {id: a, prompt: x}\n"


def too_large() -> bytes:
    return b"name: x\ndescription: " + b"x" * 300 * 1024 + b"\nsteps:\n  - {id: a, prompt: x}\n"


def many_steps() -> bytes:
    return _fill(lambda i: f"- {{id: s{i}, task: x}}\n" if i < 9_990 else "\n", HEAD).encode()


def one_long_ring() -> bytes:
    return _fill(
        lambda i: f"- {{id: s{i}, task: x, depends_on: [s{i + 1 if i < 6000 else 0}]}}\n", HEAD
    ).encode()


def every_step_in_one_knot() -> bytes:
    chosen = random.Random(7)

    def line(i: int) -> str:
        targets = ", ".join(f"s{chosen.randrange(1500)}" for _ in range(20))
        return f"- {{id: s{i}, task: x, depends_on: [{targets}]}}\n"

    return _fill(line, HEAD).encode()


def unknown_steps_of_similar_names() -> bytes:
    chosen = random.Random(7)

    def name() -> str:
        letters = list("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst")
        chosen.shuffle(letters)
        return "".join(letters)

    return _fill(lambda _: f"- {{id: {name()}, task: '{{{{steps.{name()}.output}}}}'}}\n", HEAD).encode()


def unknown_names_everywhere() -> bytes:
    return _fill(lambda i: f"- {{id: s{i}, promt: y, agnt: a lot more text}}\n", HEAD).encode()


def bad_expressions() -> bytes:
    return _fill(lambda i: f"- {{id: s-{i}, task: x, when: 'steps.s-{i} ('}}\n", HEAD).encode()


def different_expressions() -> bytes:
    return _fill(lambda i: f"- {{id: s{i}, task: x, when: '{i} > 1 && {i} < 3'}}\n", HEAD).encode()


def long_expression() -> bytes:
    return (HEAD + "- {id: a, task: x, when: '" + "1 == 1 && " * 24_000 + "true'}\n").encode()


def long_template() -> bytes:
    return (HEAD + "- {id: a, task: '" + "{{item}}" * 32_000 + "'}\n").encode()


def long_good_template() -> bytes:
    return (HEAD + "- {id: a, task: x}\n- {id: b, task: '" + "{{steps.a.output}}" * 9_000 + "'}\n").encode()


def open_braces() -> bytes:
    return (HEAD + "- {id: a, task: '" + "{{" * 120_000 + "'}\n").encode()


def long_glob() -> bytes:
    return (HEAD + "- {id: a, task: x, write_set: ['" + "{a,*" * 60_000 + "']}\n").encode()


def many_globs() -> bytes:
    return (
        HEAD + "- {id: a, task: x, write_set: [" + ", ".join(["'**/{a,b}*/**'"] * 15_000) + "]}\n"
    ).encode()


def wide_schema() -> bytes:
    properties = {f"p{i}": {"type": "string", "pattern": "(a+)+$"} for i in range(4_000)}
    return (
        HEAD + "- {id: a, task: x, output_schema: " + json.dumps({"properties": properties}) + "}\n"
    ).encode()


def schema_of_references() -> bytes:
    defs = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(2_000)} | {"d2000": True}
    schema = {"$ref": "#/$defs/d0", "$defs": defs}
    return (HEAD + "- {id: a, task: x, output_schema: " + json.dumps(schema) + "}\n").encode()


def unknown_workflows() -> bytes:
    return _fill(lambda i: f"- {{id: s{i}, workflow: w{i}}}\n", HEAD).encode()


def many_outputs() -> bytes:
    names = ", ".join(f"o{i}" for i in range(9_000))
    references = "".join(f"{{{{steps.a.p{i}}}}}" for i in range(8_000))
    return (
        HEAD + f"- {{id: a, handler: prepare_data, outputs: [{names}]}}\n- {{id: b, task: '{references}'}}\n"
    ).encode()


def nested_groups() -> bytes:
    inner = "{id: z, task: x, when: 'true'}"
    for i in range(7):
        inner = f"{{id: g{i}, steps: [{inner}]}}"
    return _fill(lambda i: f"- {{id: s{i}, steps: [{inner}]}}\n" if i < 700 else "\n", HEAD).encode()


def deepest_groups() -> bytes:
    inner = "{id: z, task: '{{steps.first.output}}'}"
    for i in range(40):
        inner = f"{{id: g{i}, steps: [{inner}]}}"
    return (HEAD + "- {id: first, task: x}\n- " + inner + "\n").encode()


def huge_numbers() -> bytes:
    nines = "9" * 60_000
    limits = f"{{timeout: {nines}h, budget: {{usd: {nines}}}}}"
    return f"name: x\nversion: {nines}\nlimits: {limits}\nsteps:\n- {{id: a, task: x}}\n".encode()


def long_words() -> bytes:
    return ("name: " + "x" * 200_000 + "\n" + "y" * 900 + ": 1\nsteps:\n- {id: a, task: x}\n").encode()


def only_values() -> bytes:
    return b"metadata: [" + b"0," * 130_000 + b"0]\nname: x\nsteps: [{id: a, task: x}]\n"


CASES: dict[str, tuple[Callable[[], bytes], str | None]] = {
    "alias_bomb": (alias_bomb, "recipe.alias"),
    "deep_list": (deep_list, "recipe.too_deep"),
    "nul": (nul, "recipe.encoding"),
    "bom": (bom, "recipe.encoding"),
    "utf16": (utf16, "recipe.encoding"),
    "tabs": (tabs, "recipe.syntax"),
    "too_large": (too_large, "recipe.too_large"),
    "many_steps": (many_steps, None),
    "one_long_ring": (one_long_ring, "recipe.cycle"),
    "every_step_in_one_knot": (every_step_in_one_knot, "recipe.cycle"),
    "unknown_steps_of_similar_names": (unknown_steps_of_similar_names, "recipe.unknown_step"),
    "unknown_names_everywhere": (unknown_names_everywhere, "recipe.unknown_key"),
    "bad_expressions": (bad_expressions, "recipe.bad_expression"),
    "different_expressions": (different_expressions, None),
    "long_expression": (long_expression, "recipe.bad_expression"),
    "long_template": (long_template, "recipe.bad_template"),
    "long_good_template": (long_good_template, None),
    "open_braces": (open_braces, "recipe.bad_template"),
    "long_glob": (long_glob, "recipe.bad_glob"),
    "many_globs": (many_globs, None),
    "wide_schema": (wide_schema, None),
    "schema_of_references": (schema_of_references, None),
    "unknown_workflows": (unknown_workflows, "recipe.unknown_workflow"),
    "many_outputs": (many_outputs, "recipe.bad_template"),
    "nested_groups": (nested_groups, None),
    "deepest_groups": (deepest_groups, "recipe.too_deep"),
    "huge_numbers": (huge_numbers, "recipe.bad_value"),
    "long_words": (long_words, "recipe.unknown_key"),
    "only_values": (only_values, "recipe.too_large"),
}
"""Each with a code that must be among the errors, or None when the recipe is merely large."""


def _peak_kb() -> int:
    """This program's own peak: `ru_maxrss` would count the size of whoever started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(name: str) -> None:
    from fanfold.language.compile import compile_recipe
    from tests.recipe.known import surroundings

    data = CASES[name][0]()
    around = surroundings()
    started = time.process_time()
    compiled = compile_recipe(data, "hostile.yaml", around)
    cpu_s = time.process_time() - started
    errors = sorted({d.code for d in compiled.report.diagnostics if d.severity == "error"})
    peak_mb = _peak_kb() / 1024
    print(json.dumps({"errors": errors, "cpu_s": cpu_s, "peak_mb": peak_mb, "bytes": len(data)}))  # noqa: T201  # what the parent reads


if __name__ == "__main__":
    main(sys.argv[1])
