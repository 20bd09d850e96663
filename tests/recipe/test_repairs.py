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


SHORT = """\
name: short
inputs: {topic: str, count: int, many: list, kind: string}
steps: [{id: a, prompt: "{{inputs.topic}} {{inputs.count}} {{inputs.many}} {{inputs.kind}}"}]
"""


def test_inputs_that_say_no_more_than_their_type_or_name_are_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "short.yaml"
    listed = SHORT.replace("{topic: str, count: int, many: list, kind: string}", "[topic, count, many, kind]")
    for text in (SHORT, listed):
        file.write_text(text)
        assert main(["check", "short.yaml"]) == 2
        assert main(["check", "--fix", "short.yaml"]) == 0
        assert main(["check", "short.yaml"]) == 0
    file.write_text(SHORT)
    main(["check", "--fix", "short.yaml"])
    assert (
        "inputs: {topic: {type: string}, count: {type: integer}, many: {type: array}, kind: {type: string}}"
        in (file.read_text())
    )


BARE = """\
name: bare
inputs: {file-name: {default: a.py}}
steps:
  - id: judge
    prompt: "Judge {{file-name}}."
    output_schema: {type: object, properties: {bad: {type: boolean}, why: {type: string}}}
  - {id: mend, when: judge.output.bad, depends_on: judge, prompt: "Mend {{file-name}}: {{judge.output.why}}"}
  - {id: tell, when: steps.judge.bad, depends_on: [judge, mend], prompt: "{{steps.judge.why}} {{mend}}"}
  - {id: last, when: size(file_name) > 1 || mend.status == "failed", depends_on: mend, prompt: x}
"""


def test_the_bare_name_of_an_input_or_step_and_a_missing_output_are_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bare.yaml"
    file.write_text(BARE)
    assert main(["check", "bare.yaml"]) == 2
    for _ in range(3):  # of an expression one mistake is found at a time
        main(["check", "--fix", "bare.yaml"])
    assert main(["check", "bare.yaml"]) == 0
    meant = BARE.replace("{{file-name}}", "{{inputs.file-name}}").replace(
        "size(file_name)", "size(inputs.file_name)"
    )
    meant = meant.replace("when: judge", "when: steps.judge").replace("{{judge", "{{steps.judge")
    meant = meant.replace("steps.judge.bad", "steps.judge.output.bad").replace(
        "steps.judge.why", "steps.judge.output.why"
    )
    meant = meant.replace("{{mend}}", "{{steps.mend.output}}").replace(
        "|| mend.status", "|| steps.mend.status"
    )
    assert file.read_text() == meant


FROM_ELSEWHERE = """\
name: from-elsewhere
inputs: {count: {type: integer, default: 3}}
steps:
  - {id: list, command: [ls]}
  - {id: read, needs: list, if: inputs.count == "3", foreach: [a, b], prompt: x, timeout: 5 minutes}
  - id: write
    depends_on: list, read
    agent: worker
    write_set: src/**
    instructions: x
    timeout: 1 day
"""
HERE = """\
name: from-elsewhere
inputs: {count: {type: integer, default: 3}}
steps:
  - {id: list, run: [ls]}
  - {id: read, depends_on: list, when: inputs.count == 3, for_each: [a, b], prompt: x, timeout: 5m}
  - id: write
    depends_on: [list, read]
    agent: worker
    write_set: [src/**]
    prompt: x
    timeout: 24h
"""


def test_the_words_of_other_systems_are_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "it.yaml"
    file.write_text(FROM_ELSEWHERE)
    assert main(["check", "it.yaml"]) == 2
    for _ in range(3):  # comparisons and edges are judged once the keys can be read
        main(["check", "--fix", "it.yaml"])
    assert file.read_text() == HERE
    assert main(["check", "it.yaml"]) == 0
