"""A wall clock that is really set while a process runs: what the process is told, not what we replaced.

A small library, compiled here and loaded before the C library, answers for `CLOCK_REALTIME` with the true
time and an offset. The offset is a number in a file that the test may write at any moment. Every other clock
is the machine's. The file times of the kernel stay as they are, as when only this process saw the step.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_s;

__attribute__((constructor)) static void open_offset(void) {
    const char *name = getenv("STEPPED_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(0, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) offset_s = page;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec told;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &told)) return -1;
    now->tv_sec = told.tv_sec;
    now->tv_usec = told.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec told;
    if (clock_gettime(CLOCK_REALTIME, &told)) return -1;
    if (now) *now = told.tv_sec;
    return told.tv_sec;
}
"""
OFFSET = struct.Struct("=q")


class SteppedClock:
    """The clock of the processes that get `environment`; `ahead` steps it for all of them at once."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(OFFSET.pack(0))
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(file)}

    def ahead(self, seconds: int) -> None:
        """Have the wall clock be that far from the true time, from this moment on."""
        with self._file.open("r+b") as file:  # never shorter on the way: it is mapped
            file.write(OFFSET.pack(seconds))


def build(folder: Path) -> Path | str:
    """The library, or why there is none here."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        return "no C compiler (cc) on a Linux, to make a clock that can be set"
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"the clock could not be compiled: {made.stderr[:500]}"
    clock = SteppedClock(library, folder / "tried")
    clock.ahead(86_400)
    tell = [sys.executable, "-c", "import time; print(time.time())"]
    told = subprocess.run(
        tell, env={**os.environ, **clock.environment}, capture_output=True, text=True, check=False
    )
    now = subprocess.run(tell, capture_output=True, text=True, check=False)
    if told.returncode != 0 or float(told.stdout) - float(now.stdout) < 80_000:
        return "a library cannot be put before this Python's clock"
    return library
