"""A map's folder on disk: a description, and the tensors of the map and of its known pairs."""

from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from unibct.data.training_classes import TrainingClasses
from unibct.errors import UserError
from unibct.files import atomic_folder, read_json, write_json
from unibct.maps.space_map import KnownPairs, SpaceMap, checked_direction
from unibct.maps.vector_map import VectorMap

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
            TrainingClasses.of_optional_json(description.get("fitted_on")),
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
