"""A clean stop: Ctrl-C and SIGTERM are noted, and seen between two steps."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class StopRequest:
    """Whether Ctrl-C (or an end by the scheduler) was asked for."""

    wanted: bool = False

    def __call__(self, number: int, frame: Any) -> None:
        """The first is noted, for the next step to see; a second Ctrl-C stops at once.

        SIGTERM never does: a scheduler sends it to ``torchrun`` and to its processes, and
        ``torchrun`` passes it on to them.
        """
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True


@contextmanager
def stop_request() -> Generator[StopRequest]:
    """Note SIGINT and SIGTERM for a block instead of stopping in the middle of a step."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {name: signal.signal(name, request) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
