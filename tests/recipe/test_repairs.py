"""`check --fix` writes what people meant, and what it wrote is right."""

from pathlib import Path

import pytest

from fanfold.cli.main import main

WRITTEN = """\
name: meant
inputs:
  - {name: files, type: list, required: yes}
  - {name: count, type: int, default: 3}
steps:
  - {id: a, prompt: x, retry: 3, when: inputs.count = 3}
  - {id: b, prompt: x, for_each: inputs.files, when: "inputs.count > 3 and inputs.count < 9"}
  - {id: c, prompt: "{{steps.a.output}}", depends_on: b}
"""
MEANT = """\
name: meant
inputs:
  - {name: files, type: array, required: true}
  - {name: count, type: integer, default: 3}
steps:
  - {id: a, prompt: x, retry: {attempts: 3}, when: inputs.count == 3}
  - {id: b, prompt: x, for_each: inputs.files, when: "inputs.count > 3 && inputs.count < 9"}
  - {id: c, prompt: "{{steps.a.output}}", depends_on: [b, a]}
"""


def test_common_slips_are_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "meant.yaml"
    file.write_text(WRITTEN)
    assert main(["check", "meant.yaml"]) == 2
    for _ in range(2):  # an edge is judged once the expressions can be read
        main(["check", "--fix", "meant.yaml"])
    assert file.read_text() == MEANT
    assert main(["check", "meant.yaml"]) == 0
