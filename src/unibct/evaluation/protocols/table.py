"""The table of evaluation protocols. To add one, write a file and add a line here.

The table imports no protocol, so that the command line can read it without loading torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from unibct.errors import UserError
from unibct.evaluation.protocols.request import EvaluationRequest, SearchRules

if TYPE_CHECKING:
    from unibct.evaluation.upgrade import Evaluation

AUTO = "auto"


@dataclass(frozen=True)
class Protocol:
    """A way to test two models.

    Attributes:
        home: module and function that run it, ``pairs:evaluate_pair_set``. The function takes a
            request and returns an evaluation.
        recognises: whether some data is for this protocol. The first entry that agrees is used.
        says: what its data looks like, for help and messages.
        takes_images: whether it reads an image set, so that images can be selected or left out.
    """

    home: str
    recognises: Callable[[str], bool]
    says: str
    takes_images: bool = False


def _has_meta_files(benchmark: str) -> Callable[[str], bool]:
    return lambda data: (Path(data) / "meta" / f"{benchmark}_face_tid_mid.txt").is_file()


PROTOCOLS: dict[str, Protocol] = {
    "pairs": Protocol(
        "pairs:evaluate_pair_set", lambda data: data.endswith(".bin"), "a .bin pair set"
    ),
    "ijbc": Protocol(
        "ijb.evaluate_models:evaluate_on_ijbc",
        _has_meta_files("ijbc"),
        "a folder with IJB-C's meta files",
    ),
    "ijbb": Protocol(
        "ijb.evaluate_models:evaluate_on_ijbb",
        _has_meta_files("ijbb"),
        "a folder with IJB-B's meta files",
    ),
    "images": Protocol(
        "images:evaluate_images", lambda data: True, "all other data", takes_images=True
    ),
}


def recognised_protocol(data: str, protocol: str = AUTO) -> str:
    """Return the name of the protocol for some data; ``auto`` recognises it from the data."""
    if protocol == AUTO:
        return next(name for name, entry in PROTOCOLS.items() if entry.recognises(data))
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {protocol!r}; choose {AUTO}, {', '.join(PROTOCOLS)}")
    return protocol


def evaluate_data(request: EvaluationRequest, protocol: str = AUTO) -> "Evaluation":
    """Evaluate a new model against an old one with the protocol for the data.

    Args:
        request: the data, the two models, and the options.
        protocol: a name from ``PROTOCOLS``, or ``auto``.
    """
    chosen = PROTOCOLS[recognised_protocol(request.data, protocol)]
    uses_images = request.images is not None or request.skip_bad
    if not chosen.takes_images and (uses_images or request.search != SearchRules()):
        names = [name for name, entry in PROTOCOLS.items() if entry.takes_images]
        raise UserError(
            f"--images and --skip-bad-images are for --protocol {' or '.join(names)} only, and so "
            "are the options of the search: --queries, --gallery-images, --gallery-mode, "
            "--backfill-curve, --old-thresholds, --save-score-map"
        )
    if request.far is not None and not 0 < request.far <= 1:
        raise UserError(f"--far must lie in (0, 1], not {request.far}")
    module, _, function = chosen.home.partition(":")
    run = getattr(import_module(f"unibct.evaluation.protocols.{module}"), function)
    return run(request)
