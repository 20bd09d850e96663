"""The program of the process of a run's functions: imports the project's handlers and calls them in sequence.

It runs as a program (`python -I function_worker.py PATH…`, with the import path of the process that started
it). A reaper starts it, so that it ends with the run in every case, together with all its child processes.

Rules
* One call at a time: to end a function, the run ends this process, which affects no other call.
* stdin and stdout carry frames. Output of handlers and of their programs goes to stderr, which the run reads.
  Their stdin is empty.
* Every exception of a handler is the failure of its call, including `SystemExit`.
"""

from __future__ import annotations

import os
import sys


def main(path: list[str]) -> None:
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that no output before a crash is lost
    sys.dont_write_bytecode = True
    sys.path[:] = path
    from fanfold.steps.function_calls import answer_calls

    answer_calls(incoming, outgoing)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # does not wait for threads that a handler left running
