"""A progress that keeps what it is told."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from unibct import progress
from unibct.progress import Advance, Progress, Silent

Receiver = TypeVar("Receiver", bound=Progress)


def show(receiver: Receiver) -> Receiver:
    """Show the progress of all that follows in the test; ``tests/conftest.py`` ends it."""
    progress._RECEIVER.set(receiver)
    return receiver


class Notes(Silent):
    """Keeps the messages, and what stands beside the bars of tasks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.statuses: list[str] = []

    @contextmanager
    def task(
        self, label: str, total: int, unit: str = "images", *, done: int = 0, weight: float = 1.0
    ) -> Generator[Advance]:
        def advance(count: int, status: str | None = None) -> None:
            self.statuses += [] if status is None else [status]

        yield advance

    def note(self, text: str) -> None:
        self.texts.append(text)
