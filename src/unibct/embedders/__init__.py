"""What can stand in place of a model: a model folder, an ONNX file, a callable, stored embeddings.

An embedder is written as ``kind:place?option=value&option=value``. ``EMBEDDERS`` lists the kinds;
a new one is two functions and an entry here, or an entry point of the group ``unibct.embedders``.
The protocol that they follow is in ``models``; the forms of stored embeddings are in
``embeddings/forms``.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

from unibct.embeddings.forms import PREFIX, STORED, describe_forms
from unibct.errors import UserError
from unibct.registry import Registry

if TYPE_CHECKING:
    from unibct.models.embedder import Embedder, ImageEmbedder


@dataclass(frozen=True)
class Reference:
    """An embedder's reference, taken apart."""

    text: str  # as it was written
    kind: str  # what comes before the colon; empty if it is to be recognised from the place
    place: str  # a path, or the name of a Python object
    options: Mapping[str, str]  # what comes after the question mark

    @property
    def path(self) -> Path:
        """The place as a path."""
        return Path(self.place)

    def require_options(self, known: Collection[str]) -> None:
        """Refuse options that the kind does not have."""
        unknown = [name for name in self.options if name not in known]
        if unknown:
            choice = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UserError(f"{self.text}: unknown option {unknown[0]!r}; {choice}")


def parse_reference(text: str, kinds: Collection[str]) -> Reference:
    """Take a reference apart. What exists as a path is a path, whatever it contains."""
    if Path(text).exists():
        return Reference(text, "", text, {})
    kind, colon, rest = text.partition(":")
    if not colon or kind not in kinds:
        kind, rest = "", text
    if rest and Path(rest).exists():
        return Reference(text, kind, rest, {})
    place, _, query = rest.partition("?")
    if not place:
        raise UserError(f"{text} names no file: write {kind}:PLACE")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UserError(f"{text}: write options as ?name=value&name=value") from error
    return Reference(text, kind, place, dict(pairs))


def parse_size(text: str, option: str = "size") -> tuple[int, int]:
    """Return (height, width) from ``112`` or ``128x64``."""
    sides = text.lower().split("x")
    if not 1 <= len(sides) <= 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(f"{option}={text}: write a number of pixels, or HEIGHTxWIDTH")
    return int(sides[0]), int(sides[-1])


def parse_numbers(text: str, option: str, count: int) -> tuple[float, ...]:
    """Return ``count`` numbers; a single one stands for all of them."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"{option}={text}: write numbers with commas between them") from error
    if len(numbers) not in (1, count):
        raise UserError(f"{option}={text}: write one number, or {count} with commas between them")
    return numbers if len(numbers) == count else numbers * count


MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Opener:
    """Opens embedders, each in the same way."""

    device: Any = "auto"  # where they compute, if they can choose: auto, or one they must have
    with_classifier: bool = False  # load a model folder's class weights too
    probes: Path | None = None  # a folder where `python:` embedders may be known, see ``Probe``

    def open(self, reference: "str | Path | Embedder") -> "Embedder":
        """Open an embedder, see ``open_embedder``; one that is open already is returned.

        A path without a kind is opened by the first kind that recognises it, otherwise as a model
        folder.
        """
        if not isinstance(reference, (str, Path)):
            return reference
        parsed = parse_reference(str(reference), EMBEDDERS)
        kind = parsed.kind
        if not kind:
            recognised = (n for n, entry in EMBEDDERS.items() if entry.recognises(parsed.path))
            kind = next(recognised, MODEL_FOLDER)
        entry = EMBEDDERS[kind]
        parsed.require_options(entry.options)
        return resolve_name(entry.opens)(parsed, self)


@dataclass(frozen=True)
class Kind:
    """A kind of embedder. Its code is imported when it is used, so that help texts need none."""

    written: str  # how it is written, in a list of kinds
    description: str  # one line for help texts
    opens: str  # ``module:function``: (Reference, Opener) -> Embedder
    recognise: str = ""  # ``module:function``: whether a path that names no kind is of this one
    options: dict[str, str] = field(default_factory=dict[str, str])  # after ``?``: name -> meaning

    def recognises(self, path: Path) -> bool:
        """Return whether this kind can open a path that names no kind."""
        return bool(self.recognise and resolve_name(self.recognise)(path))


_FIT = {"fit": "stretch, crop or letterbox"}

# What options such as ``--old``, ``--query`` and ``--gallery`` take.
EMBEDDERS: Registry[Kind] = Registry(
    "embedder",
    {
        STORED: Kind(
            f"{PREFIX}PATH",
            f"stored embeddings: {describe_forms()}",
            "unibct.embedders.own:open_stored_embeddings",
            "unibct.embedders.own:is_stored",
            {"model": "a name for the model that made them; files of one name belong together"},
        ),
        "onnx": Kind(
            "onnx:FILE",
            "an ONNX file",
            "unibct.embedders.onnx_file:open_onnx",
            "unibct.embedders.onnx_file:is_onnx",
            {
                "size": "HEIGHTxWIDTH of its input, where the file leaves it open",
                "mean": "per channel, of the pixels divided by 255",
                "std": "per channel, of the pixels divided by 255",
                "layout": "nchw or nhwc",
                "order": "rgb or bgr",
                **_FIT,
                "output": "the name of the output that is the embedding",
            },
        ),
        "python": Kind(
            "python:MODULE:ATTRIBUTE",
            "MODULE:ATTRIBUTE, a callable from images to vectors",
            "unibct.embedders.python_callable:open_callable",
            options={"size": "HEIGHTxWIDTH of its input", "channels": "1 or 3", **_FIT},
        ),
        MODEL_FOLDER: Kind(
            "model folder",
            "a model folder",
            "unibct.embedders.own:open_model_folder",
            "unibct.embedders.own:is_model_folder",
            {"space": "old: its projection into its old model's space, if the dimensions differ"},
        ),
    },
)


def describe_embedders() -> str:
    """Return what may stand in place of a model, in a few words, for help texts."""
    last, *others = (entry.written for entry in EMBEDDERS.values())
    return f"{', '.join(reversed(others))} or {last}"


def open_embedder(
    reference: "str | Path | Embedder", *, device: Any = "auto", with_classifier: bool = False
) -> "Embedder":
    """Open anything that can stand in place of a model.

    Args:
        reference: a model folder, ``onnx:FILE``, ``python:MODULE:ATTRIBUTE`` or
            ``embeddings:PATH``. Options follow after a question mark:
            ``onnx:FILE?mean=0.5&std=0.5``.
        device: where it computes, if it can choose: ``auto``, or a device that it must have.
        with_classifier: load a model folder's class weights too.
    """
    return Opener(device, with_classifier).open(reference)


def open_image_embedder(
    reference: "str | Path | Embedder", *, device: Any = "auto", why: str
) -> "ImageEmbedder":
    """Open an embedder that takes pixels; ``why`` says what they are needed for."""
    from unibct.embeddings.stored import StoredEmbeddings

    embedder = open_embedder(reference, device=device)
    if isinstance(embedder, StoredEmbeddings):
        raise UserError(
            f"{embedder.name} holds stored embeddings, but {why}: give the model itself"
        )
    return cast("ImageEmbedder", embedder)
