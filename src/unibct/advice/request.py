"""What advice is asked about, by the names that the command line takes."""

from dataclasses import dataclass
from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.data.readers.table import open_images
from unibct.errors import UserError
from unibct.methods.table import DEFAULT_METHOD


@dataclass(frozen=True)
class AdviceRequest:
    """An upgrade that someone thinks about.

    Attributes:
        old: the old model: a model folder, or anything else that ``open_embedder`` opens.
        data: the new training set, as a name for ``open_images``.
        images: a list of ids: only these images of ``data``.
        old_data: the old model's training set. None means that only its classes are known.
        old_images: a list of ids: only these images of ``old_data``.
        gallery: the gallery's images, as a name for ``open_images``, or their number.
        method: the compatibility method.
        recipe: of the new model. None means the shipped recipe that fits ``data``.
        settings: what is changed in the recipe, each as ``key=value``.
        device: where to compute.
    """

    old: str | Path
    data: str
    images: Path | None = None
    old_data: str | None = None
    old_images: Path | None = None
    gallery: str | None = None
    method: str = DEFAULT_METHOD
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    device: str = "auto"

    def open_old_set(self) -> ImageSet | None:
        """Open the old model's training set, if it is given."""
        if self.old_data is None and self.old_images is None:
            return None
        return open_images(self.old_data or self.data, self.old_images)

    @property
    def gallery_rows(self) -> int | None:
        """How many rows the gallery has, if it is given as a number."""
        number = (self.gallery or "").replace(",", "").replace("_", "")
        return int(number) if number.isdecimal() else None

    def open_gallery(self) -> ImageSet | int | None:
        """Open the gallery's images, or return their number; None if nothing is known."""
        if self.gallery is None:
            return None
        rows = self.gallery_rows
        if rows is None:
            return open_images(self.gallery)
        if rows < 1:
            raise UserError(f"--gallery {self.gallery}: a gallery has at least one row")
        return rows
