"""A database server for the duration of a measurement, if none is given."""

import sys
from contextlib import ExitStack
from pathlib import Path

from unibct.gallery.engines import EMBEDDED


def server_address(stack: ExitStack, engine: str, address: str) -> str:
    """Return the given address, or that of a server that is started and ends with the stack."""
    if engine == EMBEDDED or address:
        return address
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.gallery.servers import running

    return stack.enter_context(running(engine)).address
