"""A map between the spaces of two models that knows its direction and refuses any other use."""

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from unibct.arrays import Floats, lowered, normalized, to_numpy
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses
from unibct.errors import UserError
from unibct.files import atomic_folder, read_json, write_json
from unibct.maps.vector_map import VectorMap

Direction: TypeAlias = Literal["backward", "forward"]
"""``backward``: new queries into the old space. ``forward``: old rows into the new space."""

BACKWARD: Direction = "backward"
FORWARD: Direction = "forward"


@dataclass(frozen=True)
class KnownPairs:
    """Images whose embeddings by both models are kept with a map, to try it with."""

    ids: tuple[str, ...]  # one per image
    new: NDArray[np.float32]  # (images, new dim)
    old: NDArray[np.float32]  # (images, old dim)


@dataclass(frozen=True)
class SpaceMap:
    """A fitted map."""

    vector_map: VectorMap  # the map itself
    direction: Direction  # ``backward`` or ``forward``
    new_model: str  # the fingerprint of the new model
    old_model: str  # the fingerprint of the old model
    known: KnownPairs  # pairs that the map was not fitted on
    found_share: float  # the share of known queries that found their mates when the map was fitted
    # What puts scores of mapped queries with old rows on the old scale, see
    # ``embeddings/score_scale.py``; None for a forward map, or if it is not known.
    score_scale: float | None = None
    fitted_on: TrainingClasses = UNKNOWN_CLASSES  # the classes of the images that it was fitted on

    @property
    def source(self) -> str:
        """The fingerprint of the model whose embeddings it takes."""
        return self.new_model if self.direction == BACKWARD else self.old_model

    @property
    def target(self) -> str:
        """The fingerprint of the model into whose space it maps."""
        return self.old_model if self.direction == BACKWARD else self.new_model

    @property
    def fingerprint(self) -> str:
        """A digest of the map, and so of the kind of rows that it makes.

        Mapped rows are a kind of their own: neither the old nor the new model made them.
        """
        header = ["map", self.vector_map.kind, self.direction, self.new_model, self.old_model]
        digest = hashlib.sha256(json.dumps(header).encode())
        for name, tensor in sorted(self.vector_map.tensors().items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(to_numpy(tensor), dtype="<f4").tobytes())
        return digest.hexdigest()[:32]

    def require_source(self, fingerprint: str, name: str) -> None:
        """Refuse embeddings by any model but the one whose embeddings the map takes."""
        if fingerprint == self.source:
            return
        if fingerprint == self.target:
            other = FORWARD if self.direction == BACKWARD else BACKWARD
            raise UserError(
                f"{name} is in the space that this map leads to: a {self.direction} map takes "
                f"{_TAKES[self.direction]}; fit one with direction = {other} for these"
            )
        raise UserError(
            f"{name} was made by model {fingerprint}; this {self.direction} map takes embeddings "
            f"by model {self.source} only"
        )


_TAKES = {BACKWARD: "the new model's embeddings", FORWARD: "the old model's embeddings"}


def checked_direction(text: str) -> Direction:
    """Return a direction, or raise an error that lists them."""
    if text not in get_args(Direction):
        raise UserError(f"unknown direction {text!r}; choose {' or '.join(get_args(Direction))}")
    return cast(Direction, text)


# A map's folder on disk: a description, and the tensors of the map and of its known pairs.

FORMAT = 1
DESCRIPTION_FILE = "map.json"
TENSORS_FILE = "map.safetensors"
_KNOWN = "known."


def save_map(space_map: SpaceMap, folder: str | Path) -> None:
    """Write a new map folder, either all of it or nothing."""
    known = space_map.known
    tensors = {
        name: t.detach().cpu().contiguous() for name, t in space_map.vector_map.tensors().items()
    }
    for side, vectors in (("new", known.new), ("old", known.old)):
        tensors[_KNOWN + side] = torch.from_numpy(vectors.copy())
    with atomic_folder(Path(folder), alone=True) as temporary:
        safetensors.torch.save_file(tensors, temporary / TENSORS_FILE)
        write_json(
            temporary / DESCRIPTION_FILE,
            {
                "format": FORMAT,
                "kind": space_map.vector_map.kind,
                "direction": space_map.direction,
                "new_model": space_map.new_model,
                "old_model": space_map.old_model,
                "found": space_map.found_share,
                "fingerprint": space_map.fingerprint,
                "known": list(known.ids),
                "fitted_on": space_map.fitted_on.as_json(),
            }
            | ({} if space_map.score_scale is None else {"score_scale": space_map.score_scale}),
        )


def load_map(folder: str | Path) -> SpaceMap:
    """Read a map folder, and check it against its fingerprint."""
    folder = Path(folder)
    if not (folder / DESCRIPTION_FILE).is_file():
        raise UserError(f"{folder} is not a map folder: there is no {DESCRIPTION_FILE} in it")
    description: Any = read_json(folder / DESCRIPTION_FILE)
    try:
        if description["format"] != FORMAT:
            raise UserError(
                f"{folder} has format {description['format']}; this unibct reads {FORMAT}"
            )
        tensors = safetensors.torch.load_file(folder / TENSORS_FILE)
        known = KnownPairs(
            tuple(description["known"]),
            tensors.pop(_KNOWN + "new").numpy(),
            tensors.pop(_KNOWN + "old").numpy(),
        )
        space_map = SpaceMap(
            VectorMap.of_tensors(description["kind"], tensors),
            checked_direction(description["direction"]),
            description["new_model"],
            description["old_model"],
            known,
            float(description["found"]),
            description.get("score_scale"),
            TrainingClasses.of_json(description.get("fitted_on")),
        )
        fingerprint = description["fingerprint"]
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder} cannot be read as a map: {error}") from error
    if space_map.fingerprint != fingerprint:
        raise UserError(
            f"{folder / TENSORS_FILE} does not belong to {DESCRIPTION_FILE}; fit it again"
        )
    return space_map


# A map that is applied the wrong way round gives as many rows, of the right length, and finds
# nothing. So before mapped rows are written, known queries must find their mates among them: images
# whose embeddings by both models are kept with the map.

BEST_SHARE = 0.05  # a mate counts as found among this share of the rows, at least one row
_MOST_QUERIES = 1000  # a trial needs no more, and each is compared with all rows
_LEAST_GAIN = 0.1  # of the found share over chance, for a map that is worth keeping


@dataclass(frozen=True)
class FoundMates:
    """How many known queries find a mate."""

    share: float  # of the queries whose best mate is among the best rows, see ``BEST_SHARE``
    chance: float  # that share if the rows were in any order
    queries: int  # how many queries have a mate

    @property
    def is_useful(self) -> bool:
        """Whether clearly more is found than by chance."""
        return self.share >= self.chance + _LEAST_GAIN

    def require(self, expected: float, what: str) -> None:
        """Refuse if less is found than half-way between chance and what is expected."""
        needed = (self.chance + expected) / 2
        if self.share < needed:
            raise UserError(
                f"{what}: only {self.share:.0%} of {self.queries} known queries find their mates "
                f"among the best {BEST_SHARE:.0%} of rows, instead of {expected:.0%} when the map "
                f"was fitted ({self.chance:.0%} is chance); are these embeddings by another model?"
            )


def found_mates(
    queries: Floats,
    query_keys: Sequence[Hashable],
    rows: Floats,
    row_keys: Sequence[Hashable],
) -> FoundMates | None:
    """Search queries (queries, dim) among rows (rows, dim) of the same space.

    A key is what a query and its mates have in common, an id or a class. None: no query has a mate.
    """
    number_of = {key: number for number, key in enumerate(dict.fromkeys(row_keys))}
    row_numbers = np.array([number_of[key] for key in row_keys], dtype=np.int64)
    known = [place for place, key in enumerate(query_keys) if key in number_of]
    if not known:
        return None
    if len(known) > _MOST_QUERIES:
        drawn = np.random.default_rng(0).choice(len(known), _MOST_QUERIES, replace=False)
        known = [known[int(place)] for place in np.sort(drawn)]
    query_numbers = np.array([number_of[query_keys[place]] for place in known], dtype=np.int64)
    best = max(1, int(BEST_SHARE * len(rows)))
    mates = np.bincount(row_numbers)[query_numbers]
    ranks = _mate_ranks(normalized(queries[known]), query_numbers, normalized(rows), row_numbers)
    chance = 1 - (1 - mates / len(rows)) ** best
    return FoundMates(float((ranks < best).mean()), float(chance.mean()), len(known))


def _mate_ranks(
    queries: Floats, query_numbers: NDArray[np.int64], rows: Floats, row_numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return (queries,) how many rows of other keys score at least as high as the best mate."""
    ranks = np.empty(len(queries), dtype=np.int64)
    for place, (query, number) in enumerate(zip(queries, query_numbers, strict=True)):
        scores = rows @ query
        is_mate = row_numbers == number
        ranks[place] = (scores[~is_mate] >= lowered(scores[is_mate]).max()).sum()
    return ranks
