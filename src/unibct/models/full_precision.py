"""Single precision in full while a model embeds, whatever a GPU may do by default.

Torch lets convolutions on newer GPUs round their input to ten bits (TF32), and programs often allow
it for matrix products. Then a model's vectors would depend on the device, by 1e-3 of their length.
"""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

_FULL = "ieee"
_torch: Any = torch.backends  # of which some names are not typed
_SETTINGS: tuple[Any, ...] = (
    _torch.cuda.matmul,
    _torch.cudnn.conv,
    _torch.cudnn.rnn,
    _torch.mkldnn.matmul,
    _torch.mkldnn.conv,
    _torch.mkldnn.rnn,
)
_lock = Lock()
_blocks = 0  # that are open now, in any thread
_before: list[str] = []


@contextmanager
def full_float32() -> Generator[None]:
    """Compute in full float32 in a block; after the last of such blocks the setting is as before.

    The setting is one for all threads of the process.
    """
    global _blocks
    with _lock:
        if _blocks == 0:
            _before[:] = [setting.fp32_precision for setting in _SETTINGS]
            _set([_FULL] * len(_SETTINGS))
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _set(_before)


def _set(precisions: list[str]) -> None:
    for setting, precision in zip(_SETTINGS, precisions, strict=True):
        setting.fp32_precision = precision
