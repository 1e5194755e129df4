"""The commands that carry out what was advised."""

import shlex
from collections.abc import Sequence

from unibct.advice.request import AdviceRequest
from unibct.methods.table import DEFAULT_METHOD

_TEST = "TEST-DATA"  # the user's images of classes that neither model has seen


def upgrade_commands(
    request: AdviceRequest,
    recipe_options: Sequence[str],
    *,
    larger: str | None = None,
    warm_start: bool = False,
) -> dict[str, tuple[str, ...]]:
    """Return the command lines of each way to upgrade, by the name of the way.

    Args:
        request: what was asked.
        recipe_options: the words that name the recipe, such as ``--recipe`` and ``photographs``;
            none if ``train`` is to choose the one that fits.
        larger: an architecture for the new model, if the training set is the old one.
        warm_start: whether the recipe asks for the old weights.
    """
    old, data = shlex.quote(str(request.old)), _data(request.data, request.images)
    chosen = [*map(shlex.quote, recipe_options), *_settings(request.settings)]
    # The free model has no old one to start from.
    alone = [text for text in request.settings if text.partition("=")[0].strip() != "warm_start"]
    free = [*map(shlex.quote, recipe_options), *_settings(alone)]
    if warm_start and alone == list(request.settings):
        free.append("--no-warm-start")  # it is the recipe's own word
    if larger is not None:
        for words in (chosen, free):
            words += ["--set", f"architecture={larger}"]
    method = [] if request.method == DEFAULT_METHOD else ["--method", request.method]
    test = f"unibct evaluate {_TEST} --gallery {old} --query"
    gallery = request.gallery if request.gallery_rows is None else None
    return {
        "training": (
            _line("unibct train", data, "--old", old, *method, *chosen, "--out models/new"),
            f"{test} models/new",
        ),
        "mapping": (
            _line("unibct train", data, *free, "--out models/free"),
            _line("unibct adapt", data, "--new models/free --old", old, "--out models/adapted"),
            f"{test} models/adapted",
        ),
        "backfill": (
            f"unibct embed models/new {shlex.quote(gallery or 'GALLERY-IMAGES')} --out emb/new",
        ),
    }


def _data(data: str, images: object) -> str:
    return shlex.quote(data) + ("" if images is None else f" --images {shlex.quote(str(images))}")


def _settings(settings: Sequence[str]) -> list[str]:
    return [word for text in settings for word in ("--set", shlex.quote(text))]


def _line(*words: str) -> str:
    return " ".join(word for word in words if word)
