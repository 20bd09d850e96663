"""Defects that gave wrong results once, put back into a copy of the code, and what has to notice each.

Every row is one promise of the runtime that was broken: the edit that breaks it again, and the tests or
fuzzers that must fail because of it. They run in a process of their own whose `fanfold` is the edited copy,
so that whatever that process starts has the defect too. Nobody else sees the copy.

    python -m tests.mutants.wrong_results         every defect, until something notices it
    python -m tests.mutants.wrong_results NAME    one of them
    python -m tests.mutants.wrong_results --all   each by everything that has to notice it; takes long
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).parent.parent.parent
PACKAGE = HERE / "src" / "fanfold"
DEADLINE_S = 900
PATIENCE_S = 40
"""What a defect keeps from coming is not waited for as long as what a slow machine delays."""
TRIES = 3
"""What shows only when two processes meet may need to be asked again."""


class Edit(Struct, frozen=True):
    """What stands in a file of the package once, and what stands there instead."""

    file: str
    right: str
    wrong: str


class Mutant(Struct, frozen=True):
    """One promise, how it is broken, and who notices: tests by their names, fuzzers by their module."""

    promise: str
    edit: Edit
    noticed_by: tuple[str, ...]
    """The first is quick and never misses it; all of them are asked with `--all`."""


MUTANTS: dict[str, Mutant] = {
    "a_default_of_reject_completes": Mutant(
        "whatever answers an approval goes through one place",
        Edit("kernel/decide.py", "failure = judge(node, default, BY_DEFAULT)", "failure = None"),
        (
            "tests/runtime/test_default_answers.py::test_a_default_of_reject_fails_the_step_and_its_dependents_are_skipped",
            "tests.fuzz.driver --seed 1 --count 120",
        ),
    ),
    "a_function_changes_finished_outputs": Mutant(
        "handlers get values of their own",
        Edit("steps/functions.py", "= msgspec.to_builtins(inputs)", "= inputs"),
        (
            "tests/runtime/test_function_processes.py::test_functions_registered_by_the_program_run_in_it_with_copied_values",
            "tests.fuzz.driver --seed 1 --count 60",
        ),
    ),
    "a_store_that_was_wiped_away_is_written": Mutant(
        "a store whose file is gone or replaced is noticed at the next commit",
        Edit("store/database.py", "if name in self._known:", "if not self._known:"),
        (
            "tests/cli/test_run.py::test_a_run_whose_store_is_wiped_away_never_says_that_it_completed",
            "tests/store/test_sqlite.py",
        ),
    ),
    "life_is_judged_by_proc_alone": Mutant(
        "a live run is not taken over from another pid namespace",
        Edit(
            "process_identity.py",
            "return not self.is_visible() or start_time(self.pid) == self.started",
            "return start_time(self.pid) == self.started",
        ),
        (
            "tests/test_process_identity.py::test_a_process_is_known_by_its_boot_pid_and_start",
            "tests/kill/test_containers.py",
        ),
    ),
    "values_in_sets_are_patterns": Mutant(
        "values rendered into sets are literals",
        Edit("steps/step_type.py", "escape(render((part,), names))", "render((part,), names)"),
        (
            "tests/runtime/test_literal_sets.py::test_a_value_does_not_widen_what_may_be_written",
            "tests/runtime/test_literal_sets.py::test_a_folder_of_that_name_can_be_written",
            "tests.fuzz.driver --seed 1 --count 100",
        ),
    ),
    "a_timed_out_function_gives_its_place_away": Mutant(
        "a blocking function keeps its slot and its claims until it really ended",
        Edit("steps/functions.py", "return await finish_despite_cancel(future)", "return await future"),
        (
            "tests/runtime/test_function_processes.py::test_a_function_that_cannot_be_stopped_keeps_its_slot_and_its_files_until_it_ends",
        ),
    ),
    "claims_end_with_the_process": Mutant(
        "shared writers of one project respect each other's claims across processes",
        Edit("store/leases.py", "if ahead and overlaps(", "if not ahead and overlaps("),
        (
            "tests/cli/test_claims.py::test_a_step_waits_without_a_slot_for_files_of_another_run_and_names_it",
            "tests/kill/test_claims.py",
        ),
    ),
    "whoever_is_parked_holds_back_its_own_wave": Mutant(
        "of steps that became ready together, as many start as fit",
        Edit("kernel/admission.py", "node, node.ready_from)", "node, node.ready_seq)"),
        ("tests/testing/test_slow_scheduler.py",),
    ),
    "a_digest_holds_whatever_stands_further_up": Mutant(
        "a digest is what the phase depends on, whatever the order",
        Edit(
            "steps/values.py",
            "before = [other for other in _depended_on(phase) if other.status != SKIPPED]",
            "before = [one for one in phase.run.scope.children if one.order < phase.order and one.ended_at]",
        ),
        (
            "tests/runtime/test_digests.py::test_a_digest_is_what_the_phase_depends_on_in_whatever_order_phases_are_declared",
            "tests.fuzz.driver --seed 1 --count 60",
        ),
    ),
    "tests_without_a_command_never_pass": Mutant(
        "every built-in recipe can complete",
        Edit("api/project.py", "return find_own_command(self.folder, gate)", "return None"),
        (
            "tests/runtime/test_builtin_recipes.py::test_it_runs_to_completed",
            "tests/phases/test_audit_fix_verify.py::test_the_detected_command_is_shown_and_asked_for_before",
        ),
    ),
    "a_failed_summary_fails_its_phase": Mutant(
        "a fold falls back to an extract, with a warning",
        Edit("steps/agent.py", 'settings.purpose != "fold" or', 'settings.purpose == "fold" or'),
        (
            "tests/runtime/test_digests.py::test_a_summarizer_that_fails_leaves_an_extract_and_a_warning",
            "tests.fuzz.driver --seed 1 --count 60",
        ),
    ),
    "a_role_s_back_end_is_not_looked_at": Mutant(
        "unknown or unavailable back ends are refused by check and before a run",
        Edit("agents/backend_registry.py", "return _unknown(name, self._kinds)", "return None"),
        (
            "tests/runtime/test_backends.py::test_an_unknown_back_end_is_found_by_check_at_the_step_with_those_there_are",
        ),
    ),
}


@contextmanager
def code_with(mutant: Mutant | None) -> Iterator[Path]:
    """A folder with a copy of the package, with the defect in it or as it is."""
    with tempfile.TemporaryDirectory(prefix="fanfold-mutant-") as folder:
        copy = Path(folder) / "fanfold"
        shutil.copytree(PACKAGE, copy)
        if mutant is not None:
            edit = mutant.edit
            text = (copy / edit.file).read_text()
            if text.count(edit.right) != 1:
                raise LookupError(f"{edit.file} holds {edit.right!r} {text.count(edit.right)} times")
            (copy / edit.file).write_text(text.replace(edit.right, edit.wrong))
        yield Path(folder)


def ask(noticed_by: str, code: Path) -> subprocess.CompletedProcess[str]:
    """Run a test or a fuzzer on that code."""
    words = noticed_by.split()
    if "/" in words[0]:
        words = ["pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", *words]
    try:
        return subprocess.run(
            command,
            cwd=HERE,
            env={**settings, "PYTHONPATH": str(code), "TEST_PATIENCE_S": str(PATIENCE_S)},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"no end within {DEADLINE_S} s\n", "")


def was_noticed(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether something does not hold of the code; that it does not even load is no answer."""
    if done.returncode != 1:
        return False
    return "\nFAILED " in done.stdout or "repeat it: make fuzz" in done.stdout


class Found(Struct, frozen=True):
    """What came of one defect: the line to tell, and whether it held."""

    told: str
    held: bool


def try_out(name: str, every: bool) -> Found:
    """Ask who has to notice a defect, one after another until one does, or everyone."""
    mutant = MUTANTS[name]
    began = time.monotonic()
    noticed: list[str] = []
    missed: list[str] = []
    with code_with(mutant) as wrong, code_with(None) as right:
        for noticed_by in mutant.noticed_by:
            found = ask(noticed_by, wrong)
            for _ in range(1, TRIES):
                found = found if was_noticed(found) else ask(noticed_by, wrong)
            # Who fails without the defect too has noticed something else.
            clean = ask(noticed_by, right) if was_noticed(found) else None
            if clean is not None and clean.returncode == 0:
                noticed.append(noticed_by)
                if not every:
                    break
            else:
                missed.append(f"{noticed_by}\n{(clean or found).stdout[-2_000:]}")
    took_s = time.monotonic() - began
    held = bool(noticed) and not missed
    by = f" by {', '.join(noticed)}" if noticed else ""
    told = f"{name}: {'noticed' if noticed else 'MISSED'}{by} ({took_s:.0f} s)\n"
    return Found(told + "".join(f"  MISSED by {one}\n" for one in missed), held)


def main(words: list[str]) -> int:
    every = "--all" in words
    names = [word for word in words if word != "--all"] or list(MUTANTS)
    missed = 0
    # Each of them is a process that is waited for; as many at once as there are processors.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for coming in as_completed([pool.submit(try_out, name, every) for name in names]):
            found = coming.result()
            missed += not found.held
            sys.stdout.write(found.told)
            sys.stdout.flush()
    sys.stdout.write(f"{len(names)} defects, {missed or 'none'} missed\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
