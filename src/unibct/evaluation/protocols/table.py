"""The table of evaluation protocols. To add one, write a file and add a line here.

The table imports no protocol, so that the command line can read it without loading torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.errors import UserError
from unibct.evaluation.protocols.request import (
    EmbeddingRequest,
    EvaluationRequest,
    changed_options,
)

if TYPE_CHECKING:
    from unibct.embeddings.folder import Embeddings
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
        takes: the options from ``OPTIONS`` that it uses. Any other one is refused if a user
            changes it.
        embeds: module and function that write embeddings as the protocol needs them. The function
            takes an ``EmbeddingRequest``. Empty if the protocol takes models only.
    """

    home: str
    recognises: Callable[[str], bool]
    says: str
    takes: frozenset[str] = frozenset()
    embeds: str = ""


_SEARCH_OPTIONS = frozenset({"--far", "--seed", "--threshold-rule", "--alpha"})
_IMAGE_OPTIONS = frozenset(
    {
        "--images",
        "--seen-classes",
        "--skip-bad-images",
        "--queries",
        "--gallery-images",
        "--gallery-mode",
        "--backfill-curve",
        "--old-thresholds",
        "--save-score-map",
        "--alpha-from",
    }
)
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
        "ijb.stored_faces:embed_ijbc",
    ),
    "ijbb": Protocol(
        "ijb.evaluate_models:evaluate_on_ijbb",
        _has_meta_files("ijbb"),
        "a folder with IJB-B's meta files",
        _IJB_OPTIONS,
        "ijb.stored_faces:embed_ijbb",
    ),
    "images": Protocol(
        "images:evaluate_images",
        lambda data: True,
        "all other data",
        _SEARCH_OPTIONS | _IMAGE_OPTIONS,
        "images:embed_image_set",
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
    from unibct.evaluation.blending import require_alpha
    from unibct.evaluation.gallery_split import require_mode
    from unibct.evaluation.metrics.verification import require_rule

    name = recognised_protocol(request.data, protocol)
    _require_taken(request, name)
    if request.far is not None and not 0 < request.far <= 1:
        raise UserError(f"--far must lie in (0, 1], not {request.far}")
    if request.seed < 0:
        raise UserError(f"--seed must not be negative, not {request.seed}")
    require_rule(request.threshold_rule)
    require_mode(request.search.mode)
    if request.alpha is not None:
        if request.search.alpha_from is not None:
            raise UserError("--alpha and --alpha-from exclude each other: give one of them")
        require_alpha(request.alpha)
    return _function(PROTOCOLS[name].home)(request)


def embed_data(request: EmbeddingRequest, protocol: str = AUTO) -> "Embeddings":
    """Write a model's embeddings as the protocol that fits the data needs them.

    Args:
        request: the data, the model, and the options.
        protocol: a name from ``PROTOCOLS``, or ``auto``.
    """
    name = recognised_protocol(request.data, protocol)
    entry = PROTOCOLS[name]
    if not entry.embeds:
        raise UserError(
            f"{request.data} is {entry.says}, whose embeddings are not stored: give the models "
            "themselves to `unibct evaluate`"
        )
    for option, given in (("--images", request.images), ("--skip-bad-images", request.skip_bad)):
        if given and option not in entry.takes:
            raise UserError(f"{option} has no effect on --protocol {name}. Leave it out")
    return _function(entry.embeds)(request)


def _function(home: str) -> Callable[[Any], Any]:
    """Import the function that an entry of the table names."""
    module, _, function = home.partition(":")
    return getattr(import_module(f"unibct.evaluation.protocols.{module}"), function)


def _require_taken(request: EvaluationRequest, protocol: str) -> None:
    """Refuse options that the protocol would ignore."""
    for option in changed_options(request):
        if option not in PROTOCOLS[protocol].takes:
            others = [name for name, entry in PROTOCOLS.items() if option in entry.takes]
            raise UserError(
                f"{option} has no effect on --protocol {protocol}; it is for "
                f"{', '.join(others)} only. Leave it out"
            )
