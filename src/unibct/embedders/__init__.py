"""What can stand in place of a model: a model folder, an ONNX file, a callable, stored embeddings.

``table`` lists the kinds and each has a file. The protocol that they follow is in ``models``; the
forms of stored embeddings are in ``embeddings/forms``.

How an embedder is written on the command line: ``kind:place?option=value&option=value``.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qsl

from unibct.embeddings.forms import PREFIX, STORED, describe_forms
from unibct.errors import UserError

if TYPE_CHECKING:
    from unibct.models.embedder import Embedder, ImageEmbedder


@dataclass(frozen=True)
class Reference:
    """An embedder's reference, taken apart.

    Attributes:
        text: as it was written.
        kind: what comes before the colon; empty if it is to be recognised from the place.
        place: a path, or the name of a Python object.
        options: what comes after the question mark.
    """

    text: str
    kind: str
    place: str
    options: Mapping[str, str]

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


# The table of embedders: what options such as ``--old``, ``--query`` and ``--gallery`` take.
#
# To add a kind, write a module with the functions ``recognises`` and ``open_reference``, and add a
# line to ``EMBEDDERS``. The modules are imported when they are used, so that help texts need none.


@dataclass(frozen=True)
class Opening:
    """How an embedder is opened.

    Attributes:
        device: where it computes, if it can choose: ``auto``, or a device that it must have.
        with_classifier: load a model folder's class weights too.
        probes: a folder where ``python:`` embedders may be known already, see ``Probe``.
    """

    device: Any = "cpu"
    with_classifier: bool = False
    probes: Path | None = None

    def open(self, reference: "str | Path | Embedder") -> "Embedder":
        """Open an embedder, see ``open_embedder``; one that is open already is returned."""
        if not isinstance(reference, (str, Path)):
            return reference
        parsed = parse_reference(str(reference), EMBEDDERS)
        kind = parsed.kind
        if not kind:
            path = parsed.path
            recognised = (
                name for name, entry in EMBEDDERS.items() if entry.load().recognises(path)
            )
            kind = next(recognised, MODEL_FOLDER)
        entry = EMBEDDERS[kind]
        parsed.require_options(entry.options)
        return entry.load().open_reference(parsed, self)


class EmbedderModule(Protocol):
    """What the module of a kind contains."""

    def recognises(self, path: Path) -> bool:
        """Return whether this kind can open a path that names no kind."""
        ...

    def open_reference(self, reference: Reference, opening: Opening) -> "Embedder":
        """Return the embedder that a reference stands for."""
        ...


@dataclass(frozen=True)
class Kind:
    """A kind of embedder.

    Attributes:
        module: the name of its module in this package.
        written: how it is written, in a list of kinds.
        description: one line for help texts.
        options: the options after ``?``, by name, with what they mean.
    """

    module: str
    written: str
    description: str
    options: dict[str, str] = field(default_factory=dict[str, str])

    def load(self) -> EmbedderModule:
        """Import the module of this kind."""
        return cast(EmbedderModule, import_module(f"unibct.embedders.{self.module}"))


MODEL_FOLDER = "model"

# A path without a kind is opened by the first kind that recognises it, otherwise as a model folder.
EMBEDDERS: dict[str, Kind] = {
    STORED: Kind(
        "embeddings_file",
        f"{PREFIX}PATH",
        f"stored embeddings: {describe_forms()}",
        {"model": "a name for the model that made them; files with the same name belong together"},
    ),
    "onnx": Kind(
        "onnx_file",
        "onnx:FILE",
        "an ONNX file",
        {
            "size": "HEIGHTxWIDTH of its input, where the file leaves it open",
            "mean": "per channel, of the pixels divided by 255",
            "std": "per channel, of the pixels divided by 255",
            "layout": "nchw or nhwc",
            "order": "rgb or bgr",
            "fit": "stretch, crop or letterbox",
            "output": "the name of the output that is the embedding",
        },
    ),
    "python": Kind(
        "python_callable",
        "python:MODULE:ATTRIBUTE",
        "MODULE:ATTRIBUTE, a callable from images to vectors",
        {
            "size": "HEIGHTxWIDTH of its input",
            "channels": "1 or 3",
            "fit": "stretch, crop or letterbox",
        },
    ),
    MODEL_FOLDER: Kind(
        "model_folder",
        "model folder",
        "a model folder",
        {"space": "old: its projection into its old model's space, if the dimensions differ"},
    ),
}


def describe_embedders() -> str:
    """Return what may stand in place of a model, in a few words, for help texts."""
    last, *others = (entry.written for entry in EMBEDDERS.values())
    return f"{', '.join(reversed(others))} or {last}"


def open_embedder(
    reference: "str | Path | Embedder", *, device: Any = "cpu", with_classifier: bool = False
) -> "Embedder":
    """Open anything that can stand in place of a model.

    Args:
        reference: a model folder, ``onnx:FILE``, ``python:MODULE:ATTRIBUTE`` or
            ``embeddings:PATH``. Options follow after a question mark:
            ``onnx:FILE?mean=0.5&std=0.5``.
        device: where it computes, if it can choose: ``auto``, or a device that it must have.
        with_classifier: load a model folder's class weights too.
    """
    return Opening(device, with_classifier).open(reference)


def open_image_embedder(
    reference: "str | Path | Embedder", *, device: Any = "cpu", why: str
) -> "ImageEmbedder":
    """Open an embedder that takes pixels; ``why`` says what they are needed for."""
    from unibct.embeddings.stored import StoredEmbeddings

    embedder = open_embedder(reference, device=device)
    if isinstance(embedder, StoredEmbeddings):
        raise UserError(
            f"{embedder.name} holds stored embeddings, but {why}: give the model itself"
        )
    return cast("ImageEmbedder", embedder)
