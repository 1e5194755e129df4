"""How similarities with rows of each kind become scores, as the certificates say.

Rows of the searching model and older ones have other similarities. One ranking needs one scale,
old thresholds need the old one, and a false accept rate has a threshold for each kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unibct.errors import UserError
from unibct.evaluation.blending import MIDPOINT
from unibct.evaluation.certificate import Certificate
from unibct.evaluation.score_map import ScoreMap
from unibct.evaluation.search_test import BLEND, CROSS, NEW_SELF, OLD_SELF
from unibct.gallery.gallery_folder import DamagedCertificateError, GalleryFolder
from unibct.gallery.search_request import BLENDED_QUERY, NEW_QUERY, TWO_QUERIES, SearchRequest
from unibct.gallery.state import GalleryState, RowMaker, Standing

RAW = ScoreMap()
# What searches older rows -> the direction of the test that says how to read the scores.
_OLDER_DIRECTIONS = {NEW_QUERY: CROSS, TWO_QUERIES: OLD_SELF, BLENDED_QUERY: BLEND}


@dataclass(frozen=True)
class Scale:
    """How similarities of a kind of rows become scores."""

    rank: ScoreMap  # puts them on the common scale of the ranking
    # puts them on the scale of the result; None if that is the scale of the ranking
    report: ScoreMap | None
    least: float | None  # similarities above it pass the wanted false accept rate


def scale_for(
    folder: GalleryFolder,
    standing: Standing,
    maker: RowMaker,
    request: SearchRequest,
    kinds: Sequence[str],
) -> Scale:
    """Return how similarities with rows of a maker become scores, if these kinds have rows."""
    is_older = maker.space != standing.searching
    direction = _OLDER_DIRECTIONS[request.encoders] if is_older else NEW_SELF
    certificate = None
    if (is_older and len(kinds) > 1) or direction == BLEND or request.old_scores:
        certificate = certificate_for(folder, standing, maker, kinds)
    if direction == BLEND and certificate is not None:
        _require_tested_blend(certificate, request)
    rank = RAW
    if is_older and len(kinds) > 1 and certificate is not None:
        rank = certificate.calibration_of(direction)
    report = None
    # A model that searches no older rows is the old model itself: its scale is the old one.
    if request.old_scores and direction == OLD_SELF:
        report = RAW
    elif request.old_scores and standing.access:
        if certificate is None:
            raise UserError(
                f"no certificate says how scores of {maker.name} become old ones (--old-scores); "
                f"{_how_to_record(folder, standing)}"
            )
        report = certificate.score_map_of(direction)
    least = None
    if request.far is not None:
        least = _threshold(folder, standing, maker, direction, request.far)
    return Scale(rank, report, least)


def require_one_old_model(folder: GalleryFolder, state: GalleryState, kinds: list[str]) -> None:
    """Refuse old scores where rows would be on the scales of several old models."""
    old_models: dict[str, str] = {}
    for kind in kinds:
        maker = state.makers[kind]
        if maker.space != state.standing.searching:
            old_models[kind] = maker.name
        elif certificate := certificate_for(folder, state.standing, maker, kinds):
            known = state.makers.get(certificate.old)
            old_models[certificate.old] = certificate.old if known is None else known.name
    if len(old_models) > 1:
        raise UserError(
            f"--old-scores: there are several old models, {', '.join(old_models.values())}, each "
            "with a scale of its own; use --far, or backfill the rows of all but one of them"
        )


def blend_share(certificate: Certificate | None, request: SearchRequest) -> float:
    """Return the share of the searching model in blended queries for rows of one maker."""
    if request.alpha is not None:
        return request.alpha
    return MIDPOINT if certificate is None else certificate.blend_alpha


def _require_tested_blend(certificate: Certificate, request: SearchRequest) -> None:
    """Refuse thresholds and old scores for a blend that the certificate has not tested."""
    asks_for_scale = request.far is not None or request.old_scores
    if asks_for_scale and blend_share(certificate, request) != certificate.blend_alpha:
        raise UserError(
            "the certificate's thresholds and scales are those of blends with alpha "
            f"{certificate.blend_alpha:g}, not {request.alpha:g}: leave alpha out, or certify "
            "again with `unibct evaluate … --alpha`"
        )


def certificate_for(
    folder: GalleryFolder, standing: Standing, maker: RowMaker, kinds: Sequence[str] = ()
) -> Certificate | None:
    """Return the certificate for rows of a maker, if these kinds have rows.

    For own rows it is that of the oldest other kind: of one that has rows, if any has.
    """
    if maker.space != standing.searching:
        digest = standing.access[maker.fingerprint].certificate
    else:
        access = sorted(standing.access.items(), key=lambda pair: pair[0] not in kinds)
        digest = next(filter(None, (allowed.certificate for _, allowed in access)), "")
    try:
        return folder.certificate(digest) if digest else None
    except DamagedCertificateError as error:
        name = folder.state.makers[standing.searching].name
        raise DamagedCertificateError(
            f"{error}; record the certificate again: unibct gallery upgrade {folder.path} "
            f"--model {name} --certificate FILE"
        ) from error


def _threshold(
    folder: GalleryFolder, standing: Standing, maker: RowMaker, direction: str, far: float
) -> float:
    """Return the threshold for a kind of rows, from any certificate that knows it."""
    certificate = certificate_for(folder, standing, maker)
    if certificate is not None:
        return certificate.threshold(direction, far)
    if direction == NEW_SELF:
        for known in folder.certificates():
            if known.new == standing.searching:
                return known.threshold(NEW_SELF, far)
            if known.old == standing.searching:
                return known.threshold(OLD_SELF, far)
    raise UserError(
        f"no certificate gives a threshold for rows of {maker.name}: --far needs one; "
        f"{_how_to_record(folder, standing)}"
    )


def _how_to_record(folder: GalleryFolder, standing: Standing) -> str:
    """Return how a gallery gets a certificate for the model that searches."""
    name = folder.state.makers[standing.searching].name
    return (
        "unibct evaluate … --certify FILE writes one, unibct gallery upgrade "
        f"{folder.path} --model {name} --certificate FILE records it"
    )
