"""SIGKILL while an engine writes: is every acknowledged row there, none doubled, none torn?

    python measurements/gallery_kills.py embedded --kills 100
    python measurements/gallery_kills.py postgresql --kills 100
    python measurements/gallery_kills.py milvus --kills 100
    python measurements/gallery_kills.py milvus --at http://HOST:19530 --kills 100

Some two seconds a kill. Without --at, a server is started for the run. A child process does
numbered steps, each known beforehand: it adds rows, backfills, undoes, deletes and finishes, and
says so after each. It is killed at a random moment. Then every row is compared with what the
acknowledged steps have written: the step that was interrupted may have changed each of its rows
or not (all or none, where the engine has transactions), and no row may be without a live vector.
After that the step is repeated, or undone, and every row must be as planned. --out keeps the
count in a file, so that a run that was stopped goes on with its --kills.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gallery_server import server_address

from unibct.arrays import normalized
from unibct.files import write_text
from unibct.gallery.engines import ENGINES, Engine, Place, open_engine
from unibct.gallery.rows import NO_STEP, GalleryRows, Metadata, changed_rows, sealed_rows

OLD, NEW = "a" * 32, "b" * 32
DIMS = {OLD: 16, NEW: 24}
BATCH = 40
WITH_TRANSACTIONS = {"embedded", "postgresql"}
NAME = "kills"

State = dict[tuple[str, str], tuple[int, int]]
"""(kind, id) -> (the step that wrote the row, the step that superseded it)"""


@dataclass
class Plan:
    """What each step does, and what it leaves.

    Attributes:
        state: after the last step.
        step: its number.
    """

    state: State = field(default_factory=lambda: {})
    step: int = 0

    def next_work(self) -> tuple[str, str, list[str]]:
        """Return what the next step does: its name, its kind and its ids."""
        step = self.step + 1
        turn = step % 8
        if turn in (1, 2, 5):
            kind = OLD if turn < 5 else NEW
            return "add", kind, [f"{step:06}-{number:02}" for number in range(BATCH)]
        if turn in (3, 6, 7):
            live = sorted(i for (kind, i), row in self.state.items() if kind == OLD and not row[1])
            return "backfill", NEW, live[-60:-10]
        if turn == 4:
            return "undo", "", []
        done = sorted(i for kind, i in self.state if kind == NEW)
        return "finish", OLD, done[::7]

    def after(self) -> State:
        """Return the state after the next step."""
        work, kind, ids = self.next_work()
        step, state = self.step + 1, dict(self.state)
        if work == "undo":
            return undone(state, self.step)
        if work == "finish":  # superseded rows go, and some others
            gone = {key for key, row in state.items() if key[0] == kind and row[1]}
            gone |= {(NEW, row_id) for row_id in ids}
            return {key: row for key, row in state.items() if key not in gone}
        for row_id in ids:
            state[kind, row_id] = (step, NO_STEP)
            if work == "backfill":
                state[OLD, row_id] = (state[OLD, row_id][0], step)
        return state

    def advance(self) -> None:
        """Take the next step as done."""
        self.state, self.step = self.after(), self.step + 1


def undone(state: State, step: int) -> State:
    """Return a state without what a step has done."""
    remaining_rows = {key: row for key, row in state.items() if row[0] != step}
    return {
        key: (row[0], NO_STEP if row[1] == step else row[1]) for key, row in remaining_rows.items()
    }


def planned_rows(kind: str, ids: list[str], step: int) -> GalleryRows:
    """Return rows that depend on kind, id and step only."""
    seeds = [[int(kind[0], 16), step, *row_id.encode()] for row_id in ids]
    vectors = [np.random.default_rng(seed).standard_normal(DIMS[kind]) for seed in seeds]
    stacked = np.array(vectors, dtype=np.float32).reshape(-1, DIMS[kind])
    labels = [row_id[-1] if step % 2 else None for row_id in ids]
    metadata: list[Metadata] = [
        {"step": step, "half": step / 2, "even": step % 2 == 0} for _ in ids
    ]
    return sealed_rows(kind, ids, labels, metadata, normalized(stacked), step)


def do_step(engine: Engine, plan: Plan) -> None:
    """Do the next step of a plan."""
    work, kind, ids = plan.next_work()
    if work == "undo":
        engine.undo(plan.step)
    elif work == "finish":
        engine.delete_superseded(kind)
        engine.delete(NEW, ids)
    else:
        supersedes = [OLD] if work == "backfill" else []
        engine.write(kind, planned_rows(kind, ids, plan.step + 1), supersedes=supersedes)


def child(name: str, place: Place, first: int) -> None:
    """Do steps for ever, and print the number of each when it is done."""
    engine, plan = open_engine(name, place), Plan()
    while plan.step < first - 1:
        plan.advance()
    engine.kinds()
    print("ready", flush=True)
    while True:
        do_step(engine, plan)
        plan.advance()
        print(plan.step, flush=True)


def stored(engine: Engine) -> State:
    """Return what an engine holds; no row may be doubled or torn."""
    state: State = {}
    for kind in DIMS:
        ids: list[str] = []
        for rows in engine.scan(kind, batch=1000):
            assert changed_rows(kind, rows) == [], "torn rows"
            ids += rows.ids
            pairs = zip(rows.steps.tolist(), rows.superseded.tolist(), strict=True)
            state |= {(kind, i): pair for i, pair in zip(rows.ids, pairs, strict=True)}
        assert len(ids) == len(set(ids)), "doubled rows"
        live = sum(1 for key, row in state.items() if key[0] == kind and not row[1])
        count = engine.count(kind)
        assert (count.rows, count.live) == (len(ids), live), "rows and count differ"
    return state


def check_interrupted(engine: Engine, name: str, plan: Plan) -> bool:
    """Compare an engine with its plan after a kill; return whether the step had begun."""
    before, after, now = plan.state, plan.after(), stored(engine)
    for key in before.keys() | after.keys() | now.keys():
        assert now.get(key) in (before.get(key), after.get(key)), (plan.step + 1, key)
    work = plan.next_work()[0]
    for row_id in {row_id for _, row_id in before.keys() & after.keys()}:
        rows = [now.get((kind, row_id), (0, 1)) for kind in DIMS]
        if any(after.get((kind, row_id), (0, 1))[1] == NO_STEP for kind in DIMS):
            assert any(row[1] == NO_STEP for row in rows), (work, row_id, "is not live")
    if name in WITH_TRANSACTIONS and work != "finish":  # that one is two requests
        assert now in (before, after), "a part of a step"
    return now != before


def one_kill(name: str, place: Place, plan: Plan, chance: random.Random) -> tuple[str, bool]:
    """Start a child, kill it, check; return the interrupted work and whether it had begun."""
    arguments = [name, "--at", place.address, "--folder", str(place.folder)]
    command = [sys.executable, __file__, *arguments, "--child", str(plan.step + 1)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    steps = chance.randrange(1, 5)
    acknowledged = [process.stdout.readline() for _ in range(steps)]
    time.sleep(chance.random() * (time.perf_counter() - began) / steps)
    process.send_signal(signal.SIGKILL)
    acknowledged += process.stdout.read().split("\n")
    process.wait()
    for line in acknowledged:
        if line.strip():
            plan.advance()
            assert plan.step == int(line), "a step was left out"
    engine, work = open_engine(name, place), plan.next_work()[0]
    engine.delete(OLD, [])  # a writer waits for what the server still does for a killed one
    begun = check_interrupted(engine, name, plan)
    if work in ("add", "backfill") and chance.random() < 0.5:
        engine.undo(plan.step + 1)
        assert stored(engine) == plan.state, "undo left something"
    else:
        do_step(engine, plan)
        plan.advance()
        assert stored(engine) == plan.state, "the repeated step differs"
    engine.close()
    return work, begun


def run(name: str, place: Place, kills: int, out: Path | None) -> None:
    """Kill as often as asked, and print what was interrupted."""
    counts: dict[str, int] = {}
    if out is not None and out.is_file():
        counts = json.loads(out.read_text(encoding="utf-8"))
    engine, plan = open_engine(name, place), Plan()
    engine.create()
    for kind, dim in DIMS.items():
        engine.add_kind(kind, dim)
    done = sum(counts.values())
    chance = random.Random(done)
    try:
        while done < kills:
            work, begun = one_kill(name, place, plan, chance)
            key = f"{work}, {'some or all of it done' if begun else 'nothing of it done'}"
            counts[key] = counts.get(key, 0) + 1
            done += 1
            if out is not None:
                write_text(out, json.dumps(counts))
    finally:
        engine.destroy()
    rows = len(plan.state)
    print(f"{name}: {done} kills, {plan.step} steps, {rows} rows: none lost, doubled or torn")
    for key, count in sorted(counts.items()):
        print(f"  {count:4} during {key}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--at", default="", help="address of a server")
    parser.add_argument("--folder", type=Path, help="for the embedded engine")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with ExitStack() as stack:
        options.at = server_address(stack, options.engine, options.at)
        if options.folder is None:
            from tempfile import TemporaryDirectory

            options.folder = Path(stack.enter_context(TemporaryDirectory()))
        place = Place(options.folder, NAME, options.at)
        if options.child:
            child(options.engine, place, options.child)
        run(options.engine, place, options.kills, options.out)


if __name__ == "__main__":
    main()
