"""The process of a run's functions: it imports the project's handlers and calls one after another.

Run as a program (`python -I worker.py PATH…`, with the import path of whoever started it), never imported by
it. It is started through a keeper, so it ends with the run, however that ends, and with all it has started.

Rules
* One call at a time: whoever must end a function ends this process, and nobody else's work with it.
* stdin and stdout carry frames. What handlers print, and what is printed by programs they start, goes to
  stderr, which the run reads; there is nothing for them to read.
* Whatever a handler raises is its call's failure, `SystemExit` and the like too.
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
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # said before a crash is said
    sys.dont_write_bytecode = True
    sys.path[:] = path
    from fanfold.runtime.handlers.calls import answer_calls

    answer_calls(incoming, outgoing)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # threads that a handler left behind need not be waited for
