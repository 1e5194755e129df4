"""What the server of `forked_commands` imports, once for all commands."""

import gc
import os

import tests.tiny_models  # noqa: F401

gc.freeze()  # never garbage
os.fsync = lambda _: None  # no power fails here
