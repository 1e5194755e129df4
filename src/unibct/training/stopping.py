"""A clean stop: Ctrl-C and SIGTERM are remembered, and acted on between two steps."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class StopRequest:
    """A signal handler that remembers whether someone asked the run to stop."""

    wanted: bool = False

    def __call__(self, number: int, frame: Any) -> None:
        """Remember the request for the next step; a second Ctrl-C stops at once.

        A second SIGTERM does not: a scheduler sends it to ``torchrun`` and to its processes, and
        ``torchrun`` passes it on to them.
        """
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True


@contextmanager
def stop_request() -> Generator[StopRequest]:
    """Handle SIGINT and SIGTERM with a ``StopRequest`` for the duration of a block."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may set signal handlers
        return
    previous = {name: signal.signal(name, request) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
