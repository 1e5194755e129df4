"""The table of embedders: what options such as ``--old``, ``--query`` and ``--gallery`` take.

To add a kind, write a module with the functions ``recognises`` and ``open_reference``, and add a
line to ``EMBEDDERS``. The modules are imported when they are used, so that help texts need none.
"""

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from unibct.embedders.reference import Reference, parse_reference
from unibct.embeddings.forms.table import PREFIX, STORED, describe_forms
from unibct.errors import UserError
from unibct.progress import Progress, Silent

if TYPE_CHECKING:
    from unibct.models.embedder import Embedder, ImageEmbedder


@dataclass(frozen=True)
class Opening:
    """How an embedder is opened.

    Attributes:
        device: where it computes, if it can choose: ``auto``, or a device that it must have.
        with_classifier: load a model folder's class weights too.
        progress: gets a note about what was assumed.
        probes: a folder where ``python:`` embedders may be known already, see ``Probe``.
    """

    device: Any = "cpu"
    with_classifier: bool = False
    progress: Progress = field(default_factory=Silent)
    probes: Path | None = None

    def open(self, reference: str | Path) -> "Embedder":
        """Open an embedder, see ``open_embedder``."""
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
    reference: str | Path,
    *,
    device: Any = "cpu",
    with_classifier: bool = False,
    progress: Progress | None = None,
) -> "Embedder":
    """Open anything that can stand in place of a model.

    Args:
        reference: a model folder, ``onnx:FILE``, ``python:MODULE:ATTRIBUTE`` or
            ``embeddings:PATH``. Options follow after a question mark:
            ``onnx:FILE?mean=0.5&std=0.5``.
        device: where it computes, if it can choose: ``auto``, or a device that it must have.
        with_classifier: load a model folder's class weights too.
        progress: gets a note about what was assumed.
    """
    return Opening(device, with_classifier, progress or Silent()).open(reference)


def open_image_embedder(
    reference: str | Path, *, device: Any = "cpu", progress: Progress | None = None, why: str
) -> "ImageEmbedder":
    """Open an embedder that takes pixels; ``why`` says what they are needed for."""
    from unibct.embeddings.stored import StoredEmbeddings

    embedder = open_embedder(reference, device=device, progress=progress)
    if isinstance(embedder, StoredEmbeddings):
        raise UserError(f"{reference} holds stored embeddings, but {why}: give the model itself")
    return cast("ImageEmbedder", embedder)
