"""One module for each way to test two models, and the table that lists them.

A protocol reads its data and runs its tests. The metrics live in ``evaluation.metrics``. The table
imports no protocol, so that the command line can read it without loading torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unibct.errors import UserError
from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.embeddings.store import Embeddings

AUTO = "auto"


@dataclass(frozen=True)
class Protocol:
    """A way to test two models."""

    # Module and function that run it. The function takes the data and, by their names, ``old``,
    # ``new``, ``options`` and ``device``, and returns an evaluation.
    home: str
    recognises: Callable[[str], bool]  # the first entry that agrees to some data is used
    says: str  # what its data looks like, for help and messages
    # The fields of ``EvaluationOptions`` that it uses. Any other is refused if a user changes it.
    takes: frozenset[str] = frozenset()
    # Module and function that write embeddings as the protocol needs them, with the parameters of
    # ``embed_data``. Empty if the protocol takes models only.
    embeds: str = ""

    def load(self, home: str) -> Callable[..., Any]:
        """Import the function that the entry names."""
        module, _, function = home.partition(":")
        return getattr(import_module(module), function)


def _has_meta_files(benchmark: str) -> Callable[[str], bool]:
    return lambda data: (Path(data) / "meta" / f"{benchmark}_face_tid_mid.txt").is_file()


_SEARCH_OPTIONS = frozenset({"far", "seed", "threshold_rule", "alpha"})
EMBEDDINGS_OPTIONS = _SEARCH_OPTIONS | {"gallery_mode", "backfill_curve", "seen_classes"}
_IMAGE_OPTIONS = EMBEDDINGS_OPTIONS | {
    "images",
    "skip_bad_images",
    "queries",
    "gallery_images",
    "old_thresholds",
    "save_score_map",
    "alpha_from",
}
_IJB_OPTIONS = _SEARCH_OPTIONS | {
    "flip_test",
    "detector_scores",
    "media_mean",
    "normalize_images",
    "cache",
}

# To add a protocol, write a module and add an entry here.
PROTOCOLS: Registry[Protocol] = Registry(
    "protocol",
    {
        "pairs": Protocol(
            f"{__name__}.pairs:evaluate_pair_set",
            lambda data: data.endswith(".bin"),
            "a .bin pair set",
            frozenset({"seed"}),
        ),
        "ijbc": Protocol(
            f"{__name__}.ijb:evaluate_on_ijbc",
            _has_meta_files("ijbc"),
            "a folder with IJB-C's meta files",
            _IJB_OPTIONS,
            f"{__name__}.ijb_faces:embed_ijbc",
        ),
        "ijbb": Protocol(
            f"{__name__}.ijb:evaluate_on_ijbb",
            _has_meta_files("ijbb"),
            "a folder with IJB-B's meta files",
            _IJB_OPTIONS,
            f"{__name__}.ijb_faces:embed_ijbb",
        ),
        "images": Protocol(
            f"{__name__}.images:evaluate_images",
            lambda data: True,
            "all other data",
            _IMAGE_OPTIONS,
            f"{__name__}.images:embed_image_set",
        ),
    },
)


def is_same(old: Any, new: Any) -> bool:
    """Return whether one model, or two names of one, was given for both sides."""
    return new is old or (isinstance(new, (str, Path)) and str(new) == str(old))


def recognised_protocol(data: str, protocol: str = AUTO) -> str:
    """Return the name of the protocol for some data; ``auto``: the first that recognises it."""
    if protocol == AUTO:
        return next(name for name, entry in PROTOCOLS.items() if entry.recognises(data))
    PROTOCOLS.find(protocol)
    return protocol


def embed_data(
    data: str,
    *,
    model: str | Path,
    out: Path,
    protocol: str = AUTO,
    images: Path | None = None,
    form: str = "folder",
    dtype: str = "float32",
    skip_bad_images: bool = False,
    device: str = "auto",
) -> "Embeddings":
    """Write a model's embeddings to ``out`` as the protocol that fits the data needs them.

    ``images`` is a list of image ids: only these are embedded. ``form`` is a name from ``FORMS``; a
    folder can hold ``float16`` too. Unreadable images are refused, or left out.
    """
    name = recognised_protocol(data, protocol)
    entry = PROTOCOLS[name]
    if not entry.embeds:
        raise UserError(
            f"{data} is {entry.says}, whose embeddings are not stored: give the models "
            "themselves to `unibct evaluate`"
        )
    chosen: dict[str, Any] = {} if images is None else {"images": images}
    if skip_bad_images:
        chosen["skip_bad_images"] = True
    for option in chosen:
        if option not in entry.takes:
            raise UserError(f"{option} has no effect on the protocol {name}. Leave it out")
    run = entry.load(entry.embeds)
    return run(data, model=model, out=out, form=form, dtype=dtype, device=device, **chosen)
