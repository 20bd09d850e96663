"""What commands say: bounded, with a way to read on, and not lost when the time is over."""

import asyncio
import sys
from typing import Any

import pytest

from fanfold.agents.backend import ToolFailed
from fanfold.agents.tools.toolbox import MAX_KEPT, SessionTools
from fanfold.sessions.processes import run_process
from tests.models.sessions import request


async def runner(request, argv, timeout_s):
    return await run_process(argv, cwd=request.workspace, session_id="s", timeout_s=timeout_s, grace_s=0.1)


def tools(workspace, **given: Any) -> SessionTools:
    return SessionTools(request(workspace, **given), runner=runner)


def python(code: str) -> dict[str, Any]:
    return {"argv": [sys.executable, "-c", code]}


LOUD = "for i in range(20_000): print(i)"
WHOLE = "".join(f"{i}\n" for i in range(20_000))


@pytest.mark.full
def test_output_that_was_cut_is_read_on_to_its_end(tmp_path):
    async def main() -> None:
        box = tools(tmp_path)
        result: Any = await box.call(
            "run_command", python(f"import sys\n{LOUD}\nprint('no', file=sys.stderr)")
        )
        assert result["exit_code"] == 0
        assert len(result["stdout"]) < 17_000
        assert result["stdout"].endswith("19999\n")
        assert result["stderr"] == "no\n"
        text, offset = WHOLE[: result["next_offset"]["stdout"]], result["next_offset"]["stdout"]
        assert result["stdout"].startswith(text + "\n[…")
        while offset is not None:
            piece: Any = await box.call("read_output", {"output": result["output"], "offset": offset})
            text, offset = text + piece["text"], piece.get("next_offset")
        assert text == WHOLE
        err = await box.call("read_output", {"output": result["output"], "stream": "stderr"})
        assert err == {"text": "no\n"}

    asyncio.run(main())


@pytest.mark.full
def test_a_complete_output_offers_no_further_page(tmp_path):
    result = asyncio.run(tools(tmp_path).call("run_command", python("print('short')")))
    assert result == {"exit_code": 0, "stdout": "short\n", "stderr": ""}


@pytest.mark.full
def test_old_outputs_and_those_of_another_process_are_gone_and_say_so(tmp_path):
    async def main() -> None:
        box = tools(tmp_path)
        ids: list[Any] = []
        for _ in range(MAX_KEPT + 1):
            result: Any = await box.call("run_command", python(LOUD))
            ids.append(result["output"])
        await box.call("read_output", {"output": ids[1]})
        for where, output in ((box, ids[0]), (tools(tmp_path), ids[-1])):
            with pytest.raises(ToolFailed) as failed:
                await where.call("read_output", {"output": output})
            assert failed.value.code == "tool.no_output"
            assert "interrupted" in failed.value.hint

    asyncio.run(main())


@pytest.mark.full
def test_output_kept_for_later_reads_is_bounded(tmp_path):
    async def main() -> None:
        box = tools(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fanfold.agents.tools.toolbox.KEPT_CHARS", 40_000)
            result: Any = await box.call("run_command", python(LOUD))
        offset = result["next_offset"]["stdout"]
        kept: Any = await box.call(
            "read_output", {"output": result["output"], "offset": offset, "limit": 100_000}
        )
        assert kept["text"].startswith(WHOLE[offset:20_000])
        assert f"[… {len(WHOLE) - 40_000:,} characters left out …]" in kept["text"]
        assert kept["text"].endswith(WHOLE[-20_000:])

    asyncio.run(main())


@pytest.mark.full
def test_a_timed_out_command_shows_its_output_so_far(tmp_path):
    stuck = "print('stuck', file=sys.stderr, flush=True)\ntime.sleep(60)"
    code = f"import sys, time\n{LOUD}\nsys.stdout.flush()\n{stuck}"

    async def main() -> None:
        box = tools(tmp_path)
        result: Any = await box.call("run_command", {**python(code), "timeout_s": 2})
        assert result["exit_code"] is None
        assert result["timed_out"] is True
        assert "did not end within 2 s" in result["message"]
        assert result["stderr"] == "stuck\n"
        assert result["stdout"].endswith("19999\n")
        piece: Any = await box.call("read_output", {"output": result["output"], "limit": 4})
        assert piece == {"text": "0\n1\n", "next_offset": 4}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({}, True),
        ({"tools": ("Bash",)}, True),
        ({"tools": ("read_file", "read_output")}, False),
        ({"read_only": True}, False),
    ],
)
def test_reading_on_is_offered_with_commands_alone(tmp_path, given, offered):
    box = tools(tmp_path, **given)
    names = {spec.name for spec in box.offered()}
    assert ("read_output" in names) == ("run_command" in names) == offered
    assert not box.mutates("read_output")
    assert "read_output" not in {spec.name for spec in SessionTools(request(tmp_path)).offered()}
