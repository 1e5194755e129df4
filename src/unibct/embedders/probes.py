"""The vectors of fixed images, by which a callable without a fingerprint of its own is known again.

Another device or library changes them a little (TF32: by 1e-3 of their length), so that a digest of
them would be another one. They are compared by cosine with those that were kept before, and get the
fingerprint of those. How much two networks' vectors of one image may differ depends on how much the
vectors of different images do: after a short training, all lie in a narrow cone.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from unibct.embeddings.writing import write_array
from unibct.errors import UserError
from unibct.files import mapped_array, user_cache_folder

_FOLDER = "probes"
_SAME_SHARE = 5e-4  # of the mean distance (1 − cosine) of different images; TF32: at most 5e-5


@dataclass(frozen=True)
class Probe:
    """What a callable makes of the fixed images.

    Attributes:
        subject: its name and the images that it takes; only probes of one subject are compared.
        vectors: (images, dim), L2-normalised.
        fingerprint: a digest of these vectors, rounded.
    """

    subject: str
    vectors: NDArray[np.float32]
    fingerprint: str

    def known_fingerprint(self, known: Path | None) -> str:
        """Return the fingerprint under which an embedder with these vectors was seen before.

        One that nobody has seen is remembered in the user's cache folder, by its own fingerprint.

        Args:
            known: a folder to look in first, with what ``keep`` has kept.
        """
        cache = user_cache_folder()
        with suppress(OSError):
            name = None if known is None else self._nearest(self._distances(known))
            if name is not None or cache is None:
                return name or self.fingerprint
            self._folder(cache).mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder(cache) / "lock"):
                distances = self._distances(cache)
                name = self._nearest(distances)
                if name is None:
                    taken = self.fingerprint in distances  # rounding hides much in a narrow cone
                    name = self._exact_digest() if taken else self.fingerprint
                    self.keep(cache, name)
                return name
        return self.fingerprint

    def keep(self, folder: Path, fingerprint: str) -> None:
        """Keep the vectors in a folder as those of a fingerprint; the first ones stay."""
        if fingerprint not in self._distances(folder):
            path = self._folder(folder) / f"{fingerprint}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_array(path, self.vectors)

    def _distances(self, folder: Path) -> dict[str, float]:
        """Return how far the vectors of each fingerprint that a folder knows are from these."""
        distances: dict[str, float] = {}
        for path in self._folder(folder).glob("*.npy"):
            with suppress(UserError):  # a damaged file
                distances[path.stem] = distance_share(self.vectors, mapped_array(path))
        return distances

    def _nearest(self, distances: dict[str, float]) -> str | None:
        """Return the fingerprint of the nearest vectors, if they are near enough."""
        name = min(distances, key=lambda one: (distances[one], one), default=None)
        return name if name is not None and distances[name] <= _SAME_SHARE else None

    def _exact_digest(self) -> str:
        return hashlib.sha256(self.vectors.tobytes()).hexdigest()[:32]

    def _folder(self, folder: Path) -> Path:
        return folder / _FOLDER / hashlib.sha256(self.subject.encode()).hexdigest()[:32]


def distance_share(probe: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return how far two embedders' vectors of an image are apart, against those of two images.

    It is the mean of 1 − cosine over the same images, divided by the mean over different images.

    Args:
        probe: (images, dim) of one embedder, L2-normalised.
        other: of the other one, of the same images.
    """
    if probe.shape != other.shape:
        return float("inf")
    rows, others = probe.astype(np.float64), other.astype(np.float64)
    moved = np.square(rows - others).sum(axis=1).mean() / 2
    if moved == 0:
        return 0.0
    gaps = np.square(rows[:, None] - rows[None]).sum(axis=2) / 2
    spread = gaps.sum() / (len(rows) * (len(rows) - 1))
    return float(moved / spread) if spread else float("inf")
