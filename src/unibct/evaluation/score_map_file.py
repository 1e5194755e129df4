"""Score maps kept beside the new model, one for each old model whose gallery it searches."""

from pathlib import Path
from typing import Any, cast

from unibct.errors import UserError
from unibct.evaluation.score_map import ScoreMap
from unibct.files import read_json, write_json

FILE = "score_maps.json"
_REMEDY = "remove it and fit the maps again (unibct evaluate … --save-score-map)"


def save_score_map(folder: str | Path, old_fingerprint: str, score_map: ScoreMap) -> Path:
    """Keep a map in the new model's folder; maps for other old models stay."""
    path = Path(folder) / FILE
    maps = _read(path)
    write_json(path, maps | {old_fingerprint: score_map.as_json()})
    return path


def has_score_map(folder: str | Path, old_fingerprint: str) -> bool:
    """Return whether a map for this old model is kept in the new model's folder."""
    return old_fingerprint in _read(Path(folder) / FILE)


def require_readable_maps(folder: str | Path) -> None:
    """Raise an error if the file that a map would be added to is damaged."""
    _read(Path(folder) / FILE)


def load_score_map(folder: str | Path, old_fingerprint: str) -> ScoreMap:
    """Return the map onto the score scale of an old model."""
    path = Path(folder) / FILE
    maps = _read(path)
    if old_fingerprint not in maps:
        raise UserError(
            f"{folder} has no score map for the old model {old_fingerprint}; fit one on classes "
            "that you do not test on: unibct evaluate … --save-score-map"
        )
    try:
        return ScoreMap.from_json(maps[old_fingerprint])
    except UserError as error:
        raise UserError(f"{path}: {error}; {_REMEDY}") from error


def _read(path: Path) -> dict[str, Any]:
    """Return the maps in a file by the old model's fingerprint; none if there is no file."""
    if not path.is_file():
        return {}
    try:
        maps: Any = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {_REMEDY}") from error
    if not isinstance(maps, dict):
        raise UserError(f"{path} holds no score maps; {_REMEDY}")
    return cast(dict[str, Any], maps)
