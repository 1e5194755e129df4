"""The table of evaluation protocols: adding one is a file and a line here.

The table imports no protocol, so that the command line can read it without loading torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from unibct.errors import UserError
from unibct.evaluation.protocols.request import EvaluationRequest, changed_options

if TYPE_CHECKING:
    from unibct.evaluation.upgrade import Evaluation

AUTO = "auto"


@dataclass(frozen=True)
class Protocol:
    """A way to test two models.

    Attributes:
        home: module and function that run it, ``pairs:evaluate_pair_set``. The function takes a
            request and returns an evaluation.
        recognises: whether data looks like the protocol's; asked in the table's order.
        says: what its data looks like, for help and messages.
        takes: the options from ``OPTIONS`` that it uses. Any other one is refused if a user
            changes it.
    """

    home: str
    recognises: Callable[[str], bool]
    says: str
    takes: frozenset[str] = frozenset()


_SEARCH_OPTIONS = frozenset({"--far", "--seed", "--threshold-rule"})
_IJB_OPTIONS = _SEARCH_OPTIONS | {
    "--no-flip-test",
    "--no-detector-scores",
    "--no-media-mean",
    "--normalize-images",
    "--cache",
}


def _has_meta_files(benchmark: str) -> Callable[[str], bool]:
    return lambda data: (Path(data) / "meta" / f"{benchmark}_face_tid_mid.txt").is_file()


PROTOCOLS: dict[str, Protocol] = {
    "pairs": Protocol(
        "pairs:evaluate_pair_set",
        lambda data: data.endswith(".bin"),
        "a .bin pair set",
        frozenset({"--seed"}),
    ),
    "ijbc": Protocol(
        "ijb.evaluate_models:evaluate_on_ijbc",
        _has_meta_files("ijbc"),
        "a folder with IJB-C's meta files",
        _IJB_OPTIONS,
    ),
    "ijbb": Protocol(
        "ijb.evaluate_models:evaluate_on_ijbb",
        _has_meta_files("ijbb"),
        "a folder with IJB-B's meta files",
        _IJB_OPTIONS,
    ),
    "images": Protocol(
        "images:evaluate_images",
        lambda data: True,
        "all other data",
        _SEARCH_OPTIONS | {"--images", "--skip-bad-images"},
    ),
}


def recognised_protocol(data: str, protocol: str = AUTO) -> str:
    """Return the name of the protocol for some data; ``auto`` finds out what the data is."""
    if protocol == AUTO:
        return next(name for name, entry in PROTOCOLS.items() if entry.recognises(data))
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol {protocol!r}; choose {AUTO}, {', '.join(PROTOCOLS)}")
    return protocol


def evaluate_data(request: EvaluationRequest, protocol: str = AUTO) -> "Evaluation":
    """Test a new model against an old one by the protocol that fits the data.

    Args:
        request: the data, the two models, and the options.
        protocol: a name from ``PROTOCOLS``, or ``auto``.
    """
    from unibct.evaluation.metrics.verification import require_rule

    name = recognised_protocol(request.data, protocol)
    _require_taken(request, name)
    if not 0 < request.far <= 1:
        raise UserError(f"--far must lie in (0, 1], not {request.far}")
    require_rule(request.threshold_rule)
    module, _, function = PROTOCOLS[name].home.partition(":")
    run = getattr(import_module(f"unibct.evaluation.protocols.{module}"), function)
    return run(request)


def _require_taken(request: EvaluationRequest, protocol: str) -> None:
    """Refuse options that the protocol would ignore."""
    for option in changed_options(request):
        if option not in PROTOCOLS[protocol].takes:
            others = [name for name, entry in PROTOCOLS.items() if option in entry.takes]
            raise UserError(
                f"{option} has no effect on --protocol {protocol}; it is for "
                f"{', '.join(others)} only. Leave it out"
            )
