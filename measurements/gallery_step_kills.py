"""SIGKILL during the steps of a gallery: add, upgrade, backfill, finish, rollback and remove.

    python measurements/gallery_step_kills.py --kills 100
    python measurements/gallery_step_kills.py --kills 100 --engine postgresql
    python measurements/gallery_step_kills.py --kills 100 --engine milvus --longest 8

Some seconds a kill. Without --at, a server is started for the run. A child does one step after
another and says so after each; it is killed at a random moment. Then everything is read: each row
that an acknowledged add has written is there once, no removed row is back, each digest fits, and
each row that may be searched is found, once. The step that was interrupted either happened or did
not, and the next child goes on.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from gallery_server import server_address

from unibct.arrays import normalized
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.gallery.engines import EMBEDDED, ENGINES
from unibct.gallery.gallery import Gallery
from unibct.gallery.search import Queries, SearchRequest, searchable_kinds

OLD, NEW = "a" * 32, "b" * 32
DIM = 32
BATCH = 60
STEPS = ("add", "add", "upgrade", "add", "backfill", "add", "backfill", "remove", "finish")


def main() -> None:
    """Kill and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--engine", default=EMBEDDED, choices=list(ENGINES))
    parser.add_argument("--at", default="")
    parser.add_argument("--longest", type=float, default=1.5, help="seconds until a kill")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        options.at = server_address(stack, options.engine, options.at)
        world = World(Path(root), options.engine, options.at)
        in_child(world.create)
        kills = during = 0
        actions: dict[str, int] = {}
        while kills < options.kills:
            interrupted = killed_child(world, random.uniform(0.3, options.longest))
            kills += 1
            during += interrupted != ""
            actions[interrupted] = actions.get(interrupted, 0) + 1
            in_child(world.check)
        in_child(world.destroy)
    named = ", ".join(
        f"{name or 'between steps'} {count}" for name, count in sorted(actions.items())
    )
    print(
        f"{options.engine}: {kills} kills, {during} of them during a step ({named}): nothing lost"
    )


class World:
    """A gallery, and a file with what was acknowledged."""

    def __init__(self, root: Path, engine: str, address: str) -> None:
        self.root = root
        self.engine = engine
        self.address = address
        self.log = root / "log.jsonl"

    def create(self) -> None:
        """Make an empty gallery; a few rows stand for each model."""
        for kind in (OLD, NEW):
            write_embeddings(vectors(["model"], kind), self.root / kind)
        model = f"embeddings:{self.root / OLD}"
        Gallery.create(self.root / "G", model, engine=self.engine, at=self.address)

    def destroy(self) -> None:
        """Remove the rows from the engine."""
        Gallery(self.root / "G").folder.engine.destroy()

    def work(self) -> None:
        """Do one step after another, until killed."""
        gallery = Gallery(self.root / "G")
        for _ in range(10_000):
            past = self.acknowledged()
            number = len(past)
            action = STEPS[number % len(STEPS)] if number % 30 else "add"
            action = "rollback" if number % 11 == 10 else action
            ids = self.ids_for(action, number, past)
            self.say({"begin": action, "ids": ids, "number": number})
            try:
                self.step(gallery, action, ids)
                self.say({"done": action, "ids": ids, "number": number})
            except UserError as error:
                expected = ("already", "no upgrade", "deleted by backfill", "none of the")
                if action == "remove" and "are no rows" in str(error):  # completed after a kill
                    self.say({"done": action, "ids": ids, "number": number})
                    continue
                if not any(text in str(error) for text in expected):
                    raise
                self.say({"done": "refused", "ids": [], "number": number})

    def step(self, gallery: Gallery, action: str, ids: list[str]) -> None:
        """Do one step."""
        searching = gallery.folder.state.standing.searching
        if action == "add":
            gallery.add(vectors(ids, searching))
        elif action == "upgrade":
            gallery.upgrade(f"embeddings:{self.root / NEW}", force=True)
        elif action == "backfill":
            everything = sorted(self.present())
            gallery.backfill(vectors(everything, searching), share=random.choice((0.3, 0.6, 1.0)))
        elif action == "finish":
            gallery.finish()
        elif action == "rollback":
            everything = sorted(self.present())
            gallery.rollback(data=vectors(everything, OLD))
        else:
            gallery.remove(ids)

    def check(self) -> None:
        """Read everything, and compare it with what was acknowledged."""
        gallery = Gallery(self.root / "G")
        with gallery.folder.writing():
            from unibct.gallery.steps import end_interrupted_steps

            end_interrupted_steps(gallery.folder)
        problems = gallery.verify()
        assert not problems, problems
        state = gallery.folder.state
        kinds = searchable_kinds(state, state.standing)
        everywhere: set[str] = set()
        for kind in gallery.folder.engine.kinds():
            for rows in gallery.folder.engine.scan(kind, vectors=False):
                everywhere |= set(rows.ids)
        wanted, unsure = self.present(), self.unsure()
        missing = wanted - everywhere - unsure
        surplus = everywhere - wanted - unsure
        assert not missing, f"lost: {sorted(missing)[:5]}"
        assert not surplus, f"back again: {sorted(surplus)[:5]}"
        if not everywhere:
            return
        some = sorted(everywhere)[:: max(1, len(everywhere) // 50)]
        searching = state.standing.searching
        queries = Queries(tuple(some), np.asarray(vectors(some, searching).vectors), searching)
        for answer in gallery.search(queries, SearchRequest(k=30)):
            ids = [hit.id for hit in answer.hits]
            assert len(ids) == len(set(ids)), f"doubled: {ids}"
            here = any(gallery.folder.engine.read(k, [answer.query], vectors=False) for k in kinds)
            assert not here or answer.query in ids, f"{answer.query} is not found"

    def present(self) -> set[str]:
        """Return the ids that acknowledged steps have added and not removed."""
        ids: set[str] = set()
        for entry in self.acknowledged():
            if entry["done"] == "add":
                ids |= set(entry["ids"])
            elif entry["done"] == "remove":
                ids -= set(entry["ids"])
        return ids

    def unsure(self) -> set[str]:
        """Return the ids of a step that was begun and not acknowledged."""
        lines = self.lines()
        open_steps = [line for line in lines if "begin" in line]
        done = {line["number"] for line in lines if "done" in line}
        return {i for line in open_steps if line["number"] not in done for i in line["ids"]}

    def ids_for(self, action: str, number: int, past: list[dict[str, Any]]) -> list[str]:
        """Return the ids of a step: always the same for its number."""
        if action == "add":
            return [f"{number:05}-{i:03}" for i in range(BATCH)]
        return sorted(self.present())[::17] if action == "remove" and past else []

    def acknowledged(self) -> list[dict[str, Any]]:
        """Return the steps that were acknowledged."""
        return [line for line in self.lines() if "done" in line]

    def lines(self) -> list[dict[str, Any]]:
        """Return the log; a last line that was torn by a kill is left out."""
        if not self.log.exists():
            return []
        texts = self.log.read_text(encoding="utf-8").split("\n")
        return [json.loads(text) for text in texts[:-1]]

    def say(self, value: dict[str, Any]) -> None:
        """Write a line to the log, at once."""
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(value) + "\n")


def vectors(ids: list[str], kind: str) -> Embeddings:
    """Return each id's vector by a model; the two models' vectors of an id lie close together."""
    result = np.empty((len(ids), DIM), dtype=np.float32)
    for row, row_id in enumerate(ids):
        common = np.random.default_rng(list(row_id.encode())).standard_normal(DIM)
        rng = np.random.default_rng([*kind[:1].encode(), *row_id.encode()])
        result[row] = common + 0.2 * rng.standard_normal(DIM)
    labels = np.zeros(len(ids), dtype=np.int64)
    return Embeddings(normalized(result), tuple(ids), labels, ("one",), kind)


def in_child(function: Callable[[], None]) -> None:
    """Run a function in a child, so that this process never opens a connection."""
    child = os.fork()
    if child == 0:
        run_and_leave(function)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit("the check failed")


def killed_child(world: World, seconds: float) -> str:
    """Let a child work for a while, kill it, and return the step that was under way."""
    child = os.fork()
    if child == 0:
        random.seed(time.time_ns())
        run_and_leave(world.work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        sys.exit("the child failed")
    last = world.lines()[-1:] or [{}]
    return str(last[0].get("begin", ""))


def run_and_leave(function: Callable[[], None]) -> None:
    """Run a function and end this child, without what the parent would do at its end."""
    code = 0
    try:
        function()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
