"""Search: catching up with 100,000 outputs of 2 kB, then any-word questions.

Outputs are made of words as texts have them: few common ones, many rare ones (Zipf). A question has one to
four words, each drawn from the texts themselves, so common words are asked for as often as they are written.
Questions go through the same door as a user's: each first looks whether there is something new to index.
Each is asked in several turns and its best time counts, since the machine's noise only ever adds; the 95th
percentile is over different questions.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import msgspec

from fanfold.process_identity import this_process
from fanfold.store.protocol import Batch, OutputRow
from fanfold.store.search import Search
from fanfold.store.sqlite import SqliteStore

WORK = Path(__file__).parent / ".work"
OUTPUTS = 100_000
OUTPUT_BYTES = 2_000
VOCABULARY = 50_000
RUN_OUTPUTS = 1_000
QUESTIONS = 1_000
MAX_P95_MS = 5.0
MIN_OUTPUTS_PER_S = 2_000.0


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """One row; the best of a few turns of catching up and of asking."""
    WORK.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=WORK))
    chance = random.Random(1)
    texts = Texts(chance)
    store = SqliteStore(folder)
    fill(store, texts)
    turns = max(1, min(rounds, 5))
    questions = [" ".join(texts.words(chance.randint(1, 4))) for _ in range(QUESTIONS)]
    times = [float("inf")] * QUESTIONS
    row: dict[str, float] = {"outputs": OUTPUTS}
    for _ in range(turns):
        shutil.rmtree(folder / "index", ignore_errors=True)
        search = Search(store, folder)
        begin = perf_counter()
        search.query("nothing", k=1)
        rate = OUTPUTS / (perf_counter() - begin)
        row["caught_up_per_s"] = max(row.get("caught_up_per_s", 0.0), rate)
        taken = ask(search, questions)
        times = [min(pair) for pair in zip(times, taken, strict=True)]
    row |= {"p50_ms": median(times), "p95_ms": quantiles(times, n=20)[-1], "max_ms": max(times)}
    store.close()
    shutil.rmtree(folder, ignore_errors=True)
    return {f"{OUTPUTS} outputs of {OUTPUT_BYTES} bytes": row}


class Texts:
    """Texts from a vocabulary in which the n-th word is n times rarer than the first."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(chance.choices(letters, k=chance.randint(2, 11))) for _ in range(VOCABULARY)]
        self._weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))

    def words(self, count: int) -> list[str]:
        return self._chance.choices(self._words, cum_weights=self._weights, k=count)

    def text(self) -> str:
        return " ".join(self.words(OUTPUT_BYTES // 6))[:OUTPUT_BYTES]


def fill(store: SqliteStore, texts: Texts) -> None:
    """Put the outputs of many runs into a store."""
    for number in range(OUTPUTS // RUN_OUTPUTS):
        root = f"r{number:04d}"
        lease = store.acquire(root, this_process())
        blobs, rows = [], []
        for i in range(RUN_OUTPUTS):
            content = msgspec.json.encode(texts.text())
            name = blake2b(content, digest_size=16).hexdigest()
            blobs.append((name, content))
            rows.append(
                OutputRow(run_id=root, root_run_id=root, path=f"find[{i}]", role="explorer", blob=name, at=i)
            )
        store.write([Batch(root=root, epoch=lease.epoch, blobs=blobs, outputs=rows)])
        store.release(lease)


def ask(search: Search, questions: list[str]) -> list[float]:
    """Milliseconds of each question; all of them have answers."""
    times = []
    for question in questions:
        begin = perf_counter()
        hits = search.query(question)
        times.append((perf_counter() - begin) * 1_000)
        assert hits, question
    return times


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    missed = []
    for name, row in table.items():
        if row["p95_ms"] > MAX_P95_MS:
            missed.append(f"{name}: p95 {row['p95_ms']:.1f} ms, allowed {MAX_P95_MS:.0f}")
        if row["caught_up_per_s"] < MIN_OUTPUTS_PER_S:
            missed.append(
                f"{name}: {row['caught_up_per_s']:.0f} outputs/s caught up, asked {MIN_OUTPUTS_PER_S:.0f}"
            )
    return missed
