"""Tables of what a team decides on besides the verdict: thresholds, flips, clients, and so on."""

from unibct.evaluation.blending import BlendedQueries
from unibct.evaluation.criterion import Criterion
from unibct.evaluation.evaluation import Evaluation, SearchEvaluation, UpgradeEvaluation
from unibct.evaluation.mixed_gallery import BackfillCurve
from unibct.evaluation.old_threshold import MOST_LOST, Accepted
from unibct.evaluation.search_test import BLEND, CROSS, OLD_SELF, REVERSED_CROSS
from unibct.evaluation.verification import rate_name
from unibct.gallery.orders import ORDERS
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    difference_cell,
    percent_cell,
    share_cell,
    verdict_cell,
)


def decision_tables(evaluation: Evaluation) -> list[PlainTable]:
    """Return the tables that an evaluation has; a pair set has none."""
    if not isinstance(evaluation, SearchEvaluation):
        return []
    tables: list[PlainTable] = []
    if isinstance(evaluation, UpgradeEvaluation):
        tables.append(single_image_table(evaluation))
    if evaluation.seen_values:
        tables.append(seen_table(evaluation))
    tables += [
        threshold_table(evaluation),
        new_threshold_table(evaluation),
        flip_table(evaluation),
        old_client_table(evaluation),
        blended_table(evaluation.blended_queries),
    ]
    if isinstance(evaluation, UpgradeEvaluation) and evaluation.backfill_curves:
        tables.append(backfill_table(evaluation.backfill_curves))
    return tables


def single_image_table(evaluation: UpgradeEvaluation) -> PlainTable:
    """Return the criterion of single images, which decides for a gallery of single images."""
    single = evaluation.single_images
    rows = tuple(
        (
            _metric_cell(c),
            share_cell(c.old_self),
            share_cell(c.cross),
            difference_cell(c),
            verdict_cell(c.verdict),
        )
        for c in single.compared
    )
    queries = len(single.tests[CROSS].query_classes)
    note = (
        f"{queries:,} queries in a gallery whose rows are single images, not templates of classes: "
        "this verdict decides for such a gallery, and is the one in the certificate. Verdict on "
        f"single images: {evaluation.single_images_verdict}."
    )
    heads = ("metric", f"{OLD_SELF}, %", f"{CROSS}, %", "difference, points", "verdict")
    return PlainTable("Single images", note, heads, rows)


def seen_table(evaluation: Evaluation) -> PlainTable:
    """Return the tests among classes that a model was trained on."""
    values = evaluation.seen_values
    metrics = list(values[CROSS])
    rows = tuple(
        (Cell(test), *(share_cell(measured[metric]) for metric in metrics))
        for test, measured in values.items()
    )
    note = (
        f"Among the {evaluation.seen.count} classes that a model was trained on, alone. They are "
        "not in the verdict, nor in any other table: on them numbers promise more than the model "
        "holds on new classes."
    )
    return PlainTable("Seen classes, %", note, ("query → gallery", *metrics), rows)


def old_model_text(evaluation: Evaluation) -> str:
    """Return how strong the old model is, and whether it is too weak; empty if it is not known."""
    strength = evaluation.old_model
    if strength is None:
        return ""
    if strength.too_weak:
        begin = (
            f"The old model is too weak to judge an upgrade by: {strength}. It is hardly better "
            "than comparing pixels, so beating it says little."
        )
        if strength.pixel_recall_at_1 > 0.9:
            return f"{begin} These test images are too easy: test on images that differ more."
        return (
            f"{begin} In a trial, train a better old model first. If it is the one in production, "
            "its gallery finds little more than pixels would: embed the gallery again."
        )
    return f"old model: {strength}"


def threshold_table(evaluation: SearchEvaluation) -> PlainTable:
    """Return what old and new queries accept at the thresholds of the old system."""
    rows: list[tuple[Cell, ...]] = []
    for row in evaluation.at_old_threshold:
        ways = {
            "old": row.old,
            "new": row.cross,
            "new, with the score map": row.mapped,
            "new, times the score scale": row.scaled,
        }
        for way, accepted in ways.items():
            rows.append((Cell(f"FAR {rate_name(row.far)}, {way}"), *_accepted_cells(accepted)))
    return PlainTable(
        "At the thresholds of the old system",
        _threshold_note(evaluation),
        ("set for, queries", "TAR, %", "FAR, %"),
        tuple(rows),
    )


def new_threshold_table(evaluation: SearchEvaluation) -> PlainTable:
    """Return the thresholds of the old system, and those that new queries need."""
    return PlainTable(
        "New thresholds",
        "The threshold at which new queries have the same FAR in this test. A gallery of single "
        "images needs those of its certificate.",
        ("set for", "old threshold", "new threshold", "TAR there, %"),
        tuple(
            (
                Cell(f"FAR {rate_name(row.far)}"),
                _threshold_cell(row.threshold, row.interval),
                _threshold_cell(row.new_threshold, row.new_interval),
                share_cell(row.own_tar),
            )
            for row in evaluation.at_old_threshold
        ),
    )


def _threshold_note(evaluation: SearchEvaluation) -> str:
    """Return whether the old thresholds can stay, as far as the test classes can tell."""
    rows, carried = evaluation.at_old_threshold, evaluation.carried_fars
    judged = [row for row in rows if row.far in carried]
    others = ", ".join(rate_name(row.far) for row in rows if row.far not in carried)
    if not judged:
        return f"There are too few test classes to say anything at FAR {others}."
    unsafe_rates = ", ".join(rate_name(row.far) for row in judged if row.needs_new_threshold)
    safe_rates = f" for FAR {', '.join(rate_name(row.far) for row in judged)}" if others else ""
    scale = evaluation.score_scale
    factor = "" if scale is None else f", multiply new scores by {scale:.4f}"
    note = (
        f"At the old thresholds for FAR {unsafe_rates} new queries lose matches or let "
        f"impostors in: set the thresholds again{factor}, or use the score map, which puts new "
        "scores on the old scale."
        if unsafe_rates
        else f"The old thresholds{safe_rates} can stay: at most twice as many impostors pass, and "
        f"at most {100 * MOST_LOST:.0f} % of the matches at new thresholds are lost."
    )
    return note + (f" There are too few test classes to judge FAR {others}." if others else "")


def flip_table(evaluation: SearchEvaluation) -> PlainTable:
    """Return the queries whose answer changes."""
    flips = evaluation.flips
    relative = flips.relative_nfr
    note = (
        "Queries that find their class first before and not now (negative flips), and the reverse. "
        "Relative: 1 if the errors now are independent of the old ones, 0 if no old hit is lost."
    )
    row = (
        Cell(f"{CROSS} after {OLD_SELF}"),
        percent_cell(flips.nfr),
        percent_cell(flips.pfr),
        Cell(f"{relative.mean:.2f}", f"{relative.low:.2f} to {relative.high:.2f}"),
    )
    heads = ("tests", "negative flips, %", "positive flips, %", "relative negative flips")
    return PlainTable("Flips at top-1", note, heads, (row,))


def old_client_table(evaluation: SearchEvaluation) -> PlainTable:
    """Return the criterion of old queries in a gallery of the new model."""
    verdict = evaluation.old_clients_verdict
    rows = tuple(
        (
            _metric_cell(c),
            difference_cell(c),
            verdict_cell(c.verdict),
        )
        for c in evaluation.old_clients
    )
    note = (
        "Old queries in a gallery of the new model, against old queries in the old gallery, in "
        f"points: what clients see that still run the old model. Verdict: {verdict}."
    )
    heads = ("metric", f"{REVERSED_CROSS} − {OLD_SELF}", "verdict")
    return PlainTable("Old clients", note, heads, rows)


def blended_table(blend: BlendedQueries) -> PlainTable:
    """Return what blends of old and new queries gain in the old gallery."""
    rows = tuple(
        (
            _metric_cell(gain),
            share_cell(gain.cross),
            difference_cell(gain),
            difference_cell(more),
        )
        for gain, more in zip(blend.minus_old_self, blend.minus_cross, strict=True)
    )
    chosen = "not chosen on other classes"
    if blend.choice is not None:
        chosen = f"chosen on {blend.choice.chosen_on.data or 'other images'}"
    note = (
        f"Old gallery, queries (1 − α)·old + α·new with α = {blend.alpha:g} ({chosen}). Both "
        "models run for each query. Differences in points: to old queries (what the upgrade "
        f"gains by blending) and to new ones. Verdict on blended queries: {blend.verdict}."
    )
    heads = ("metric", f"{BLEND}, %", f"{BLEND} − {OLD_SELF}", f"{BLEND} − {CROSS}")
    return PlainTable("Blended queries", note, heads, rows)


def backfill_table(curves: dict[str, BackfillCurve]) -> PlainTable:
    """Return mean and deepest dip of every metric's curve, and some points of it."""
    rows: list[tuple[Cell, ...]] = []
    shares = next(iter(curves.values())).shares  # those of every order
    middle = len(shares) // 2
    for order, curve in curves.items():
        for metric, values in curve.values.items():
            rows.append(
                (
                    Cell(f"{metric}, {ORDERS[order].meaning}"),
                    *(share_cell(values[cut]) for cut in (0, middle, -1)),
                    share_cell(curve.mean(metric)),
                    Cell(f"{100 * curve.dip(metric):+.2f}"),
                )
            )
    note = (
        "New queries while the gallery is being embedded again, image by image. The dip is the "
        "lowest point of the curve minus the old self test, in points: above zero, search is at "
        "none of the points measured worse than before the upgrade."
    )
    cuts = (f"{100 * shares[cut]:.0f} %" for cut in (0, middle, -1))
    heads = ("metric, order of the rows", *cuts, "mean", "deepest dip")
    return PlainTable("Partly backfilled galleries, %", note, heads, tuple(rows))


def _metric_cell(criterion: Criterion) -> Cell:
    name = criterion.metric
    return Cell(name if criterion.decides else f"{name} (not in the verdict)")


def _threshold_cell(threshold: float, interval: tuple[float, float]) -> Cell:
    return Cell(f"{threshold:.4f}", f"{interval[0]:.4f} to {interval[1]:.4f}")


def _accepted_cells(accepted: Accepted | None) -> tuple[Cell, Cell]:
    """Return TAR, and FAR with its interval, in percent."""
    if accepted is None:
        return NO_VALUE, NO_VALUE
    low, high = accepted.far_interval
    far = Cell(f"{100 * accepted.far:.4f}", f"{100 * low:.4f} to {100 * high:.4f}")
    return share_cell(accepted.tar), far
