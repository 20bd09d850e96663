"""PyYAML as the package reads it: nothing is compiled for nothing, and it stays whole for everybody else."""

import subprocess
import sys

from tests.work import PATIENCE_S

CODE = """\
import re, sys
compiled = []
compile_now = re._compiler.compile
def told(pattern, flags=0):
    compiled.append(pattern)
    return compile_now(pattern, flags)
re._compiler.compile = told
real = re.compile
from fanfold.text.trees.libyaml import import_yaml
yaml = import_yaml()
assert import_yaml() is yaml
assert re.compile is real
assert not compiled, compiled
assert list(yaml.cyaml.CParser(b"a: 1").get_event().__dict__)
"""
OTHERS = """\
import datetime
read = yaml.safe_load("{a: 1.5, b: yes, c: 2026-01-02, d: [~, 0x1f], e: 2001-12-14t21:59:43Z}")
assert read["a"] == 1.5 and read["b"] is True and read["c"] == datetime.date(2026, 1, 2), read
assert read["d"] == [None, 31] and read["e"].year == 2001, read
try:
    yaml.safe_load("a: \\x01")
except yaml.YAMLError:
    pass
else:
    raise AssertionError("a control character was read")
assert yaml.safe_dump({"a": "yes"}) == "a: 'yes'\\n"
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_it_compiles_no_regular_expression():
    run(CODE)


def test_who_uses_its_own_readers_finds_them_working():
    run(CODE + OTHERS)
