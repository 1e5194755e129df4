"""What a gallery is: its engine, its models, the steps that were taken, and who may search what.

The state is one file, ``state.json``, that is replaced as a whole. Rows are in the engine; the
state says what they mean.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unibct.errors import UserError
from unibct.files import read_json, write_json

STATE_FILE = "state.json"
FORMAT = 2
_READABLE = (1, 2)  # in 1, no number of a step is left out

CREATE, ADD, REMOVE, INDEX = "create", "add", "remove", "index"
UPGRADE, BACKFILL, FINISH, ROLLBACK = "upgrade", "backfill", "finish", "rollback"
CERTIFY = "certify"  # a certificate for the model that searches already
# Details of a step, for ``verify``: rows of each kind after it, and which of these counts is last.
ROWS_AFTER, COUNT_ORDER = "rows_after", "count_order"

BY_SEARCHES = "lazy"  # a detail of a backfill: searches embed the rows again that they find
# A detail of a rollback: the number of the add whose rows it makes again before it changes over.
MAKES = "makes"
PASSED = "passed"  # a detail of a removal or rollback: what it has begun is brought to an end

STEPS_IN_FULL = 100  # the last steps; of earlier ones, adds and removals are put together
# Details of steps that were put together: how many they are, when the last one began, their sums.
STEPS, UNTIL = "steps", "until"
_SUMS = ("added", "present", "rows")
_REMARKABLE = {"interrupted", "restored"}  # details of adds that stay as they are


@dataclass(frozen=True)
class RowKind:
    """A model or a map that makes rows, or queries."""

    fingerprint: str  # the kind of its rows
    name: str  # what the user called it
    dim: int  # the dimension of its vectors
    # `folder` (kept in the gallery), `reference` (opened where it is), `stored` (only its
    # embeddings are known) or `map`
    source: str
    reference: str  # where it is opened, if the source is a reference or a map
    # the fingerprint of the model whose space the vectors are in: its own, unless it is a map
    space: str


@dataclass(frozen=True)
class Access:
    """Why the searching model may search the rows of a kind."""

    certificate: str = ""  # the digest of the certificate; empty if there is none
    forced: bool = False  # somebody insisted, without a certificate that says *compatible*


@dataclass(frozen=True)
class Standing:
    """Who searches what: the part of the state that a rollback brings back."""

    searching: str  # the fingerprint of the model whose queries search
    # kind of rows -> why they may be searched; the model's own rows need no entry
    access: dict[str, Access] = field(default_factory=dict[str, Access])


@dataclass(frozen=True)
class Step:
    """Something that was done to the gallery."""

    number: int  # counts from 1; rows carry the number of the step that wrote them
    action: str  # what was done
    date: str  # when it began
    done: bool  # whether it is complete
    undone: bool  # whether a rollback has undone it
    before: Standing | None  # who searched what before it
    details: dict[str, Any] = field(default_factory=dict[str, Any])  # what else to say about it


@dataclass(frozen=True)
class GalleryState:
    """The content of ``state.json``."""

    name: str  # tells this gallery from others in the same database
    engine: str  # a name from the table of engines
    address: str  # of the engine's server
    kinds: dict[str, RowKind]  # fingerprint -> model or map; `makers` in the file
    standing: Standing  # who searches what now
    # everything that was done, by rising number. Adds and removals that are long past are put
    # together, so that some numbers are left out
    steps: tuple[Step, ...] = ()

    @property
    def searching(self) -> RowKind:
        """The model whose queries search."""
        return self.kinds[self.standing.searching]

    @property
    def is_forced(self) -> bool:
        """Whether any kind of rows is searched because somebody insisted."""
        return any(access.forced for access in self.standing.access.values())

    @property
    def unfinished(self) -> Step | None:
        """The step that was begun and is not complete, if there is one."""
        return next((step for step in self.steps if not step.done and not step.undone), None)

    def interrupted(self, action: str) -> Step | None:
        """Return the step of this kind that was begun and is not complete, if there is one."""
        steps = (s for s in self.steps if s.action == action and not s.done and not s.undone)
        return next(steps, None)

    @property
    def open_backfill(self) -> Step | None:
        """The backfill that is under way or paused, if there is one; not the one by searches."""
        step = self.unfinished
        if step is None or step.action != BACKFILL or step.details.get(BY_SEARCHES):
            return None
        return step

    def searchable(self, kind: str) -> bool:
        """Return whether the searching model may search the rows of a kind."""
        row_kind = self.kinds.get(kind)
        if row_kind is None:
            return False
        return row_kind.space == self.standing.searching or kind in self.standing.access

    def begun(self, action: str, **details: Any) -> "GalleryState":
        """Return the state with a new step that is not complete."""
        step = Step(self.next_number, action, now(), False, False, self.standing, details)
        return replace(self, steps=_put_together((*self.steps, step)))

    @property
    def next_number(self) -> int:
        """The number of the next step."""
        return self.steps[-1].number + 1 if self.steps else 1

    def step(self, number: int) -> Step:
        """Return a step by its number."""
        for step in self.steps:
            if step.number == number:
                return step
        raise UserError(f"there is no step {number}; this gallery has {self.next_number - 1}")

    def without_step(self, number: int) -> "GalleryState":
        """Return the state as if a step, of which nothing is left, had not begun."""
        return replace(self, steps=tuple(one for one in self.steps if one.number != number))

    def changed_step(self, number: int, **changes: Any) -> "GalleryState":
        """Return the state with some attributes of a step changed.

        ``details`` are added to those of the step; one that is None goes.
        """
        step = self.step(number)
        details = step.details | changes.pop("details", {})
        details = {name: value for name, value in details.items() if value is not None}
        changed = replace(step, details=details, **changes)
        steps = (changed if one.number == number else one for one in self.steps)
        return replace(self, steps=tuple(steps))


def _put_together(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps, with one for all adds and one for all removals of each run long past.

    Nothing goes back to before an add or a removal, so only people read about them. A run ends
    where a step of another kind stands.
    """
    result: list[Step] = []
    run: dict[str, Step] = {}
    for step in steps[:-STEPS_IN_FULL]:
        if _is_plain(step):
            first = run.get(step.action)
            run[step.action] = step if first is None else _sum(first, step)
            continue
        result += [*run.values(), step]
        run = {}
    return (*result, *run.values(), *steps[-STEPS_IN_FULL:])


def _is_plain(step: Step) -> bool:
    """Return whether a step is an add or a removal about which there is nothing else to say."""
    is_done = step.done and not step.undone
    return step.action in (ADD, REMOVE) and is_done and _REMARKABLE.isdisjoint(step.details)


def _sum(first: Step, later: Step) -> Step:
    """Return one step in place of two: number and date of the first, and the details of both."""
    both = (first.details, later.details)
    sums = {name: sum(int(one.get(name, 0)) for one in both) for name in _SUMS}
    details = later.details | {name: value for name, value in sums.items() if value}
    details |= {STEPS: sum(int(one.get(STEPS, 1)) for one in both), UNTIL: later.date}
    if first.details.get("source") != later.details.get("source"):
        details.pop("source", None)
    return replace(first, details=details)


def now() -> str:
    """Return the time as a text that sorts."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_state(folder: Path, state: GalleryState) -> None:
    """Replace the state file."""
    content = {"makers" if name == "kinds" else name: v for name, v in asdict(state).items()}
    write_json(folder / STATE_FILE, {"format": FORMAT, "digest": _digest(content)} | content)


def read_state(folder: Path) -> GalleryState:
    """Read the state file; one that was changed by hand is refused."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise UserError(f"{folder} is not a gallery; make one: unibct gallery create {folder}")
    content = read_json(path)
    try:
        if content.pop("format") not in _READABLE:
            raise UserError(f"{path} was written by another version of unibct")
        if content.pop("digest") != _digest(content):
            raise UserError(f"{path} was changed by hand or is damaged: its digest does not fit")
        return _state(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the state of a gallery: {error}") from error


def _state(content: dict[str, Any]) -> GalleryState:
    kinds = {kind: RowKind(**about) for kind, about in content.pop("makers").items()}
    standing = _standing(content.pop("standing"))
    steps = tuple(
        Step(**(step | {"before": None if step["before"] is None else _standing(step["before"])}))
        for step in content.pop("steps")
    )
    return GalleryState(**content, kinds=kinds, standing=standing, steps=steps)


def _standing(content: dict[str, Any]) -> Standing:
    access = {kind: Access(**value) for kind, value in content["access"].items()}
    return Standing(content["searching"], access)


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
