"""The tables of a benchmark's report.

``all_tables`` has them in the order of the report. A table that needs results which the benchmark
does not have is None.
"""

from collections.abc import Callable
from dataclasses import replace

from unibct.benchmark.measuring import SEEN
from unibct.benchmark.results import Results, compared_methods, gain
from unibct.evaluation.criterion import (
    CONFIDENCE,
    FEWEST_SEEDS,
    NOT_COMPATIBLE_RULE,
    Verdict,
    few_classes_note,
    joint_verdict,
    seeds_note,
    these_seeds,
)
from unibct.maps.table import MAPS
from unibct.methods.table import NO_METHOD
from unibct.progress import clock
from unibct.report.baseline_tables import baseline_tables
from unibct.report.blended_table import blended_table, weights_table
from unibct.report.chain_tables import chain_tables
from unibct.report.gain_tables import criterion_table, gain_tables
from unibct.report.mixed_table import mixed_table
from unibct.report.old_threshold_table import old_threshold_table
from unibct.report.paper_tables import other_losses_table, prototype_table, scenario_table
from unibct.report.plain_table import (
    NO_VALUE,
    Cell,
    PlainTable,
    percent_cell,
    verdict_kind,
)
from unibct.report.scenario_columns import methods_by_scenarios

_SIGNS = {"compatible": "✓", "not compatible": "✗", "within noise": "≈"}


def all_tables(results: Results) -> list[PlainTable]:
    """Return every table of the report, in its order."""
    makers: list[Callable[[Results], PlainTable | None]] = [
        scenario_table,
        prototype_table,
        other_losses_table,
        flip_table,
        old_threshold_table,
        blended_table,
        weights_table,
        mixed_table,
    ]
    verdicts = verdict_table(results)
    tables = [*([] if verdicts is None else [verdicts]), *gain_tables(results)]
    tables += [table for make in makers if (table := make(results)) is not None]
    tables += baseline_tables(results)
    tables += [criterion_table(results, scenario) for scenario in results.scenarios]
    tables += chain_tables(results)
    if len(results.seeds) < FEWEST_SEEDS:
        over = seeds_note(len(results.seeds))
        tables = [replace(table, note=f"{table.note} {over}") for table in tables]
    cost = cost_table(results)
    return tables if cost is None else [*tables, cost]


def verdict_table(results: Results) -> PlainTable | None:
    """Return the verdict on each method in each scenario."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        verdicts: list[Verdict] = [
            gain(results, scenario, method, metric).estimate.verdict
            for metric in results.deciding_metrics
        ]
        verdict = joint_verdict(verdicts)
        signs = " ".join(_SIGNS[one] for one in verdicts)
        return Cell(verdict + about, signs, verdict_kind(verdict))

    # The word is what a reader acts on, so it says itself what it does not claim.
    seeds = len(results.seeds)
    about = "" if seeds >= FEWEST_SEEDS else f" for {these_seeds(seeds)}"
    note = (
        "Compatible means: the cross test is above the old self test in every metric that decides "
        f"({', '.join(results.deciding_metrics)}; one sign each), and the "
        f"{100 * CONFIDENCE:.0f} % interval of each difference is above zero (✓). "
        f"{NOT_COMPATIBLE_RULE}: ✗ is such a difference, ≈ is neither."
    )
    note = " ".join(filter(None, (note, few_note(results), weak_note(results))))
    return methods_by_scenarios(results, "Verdicts", note, compared_methods(results), cell)


def few_note(results: Results) -> str | None:
    """Return that the test classes are too few for a verdict, if they are."""
    note = few_classes_note(results.query_classes)
    return None if note is None else f"{note[0].upper()}{note[1:]}."


def weak_note(results: Results) -> str | None:
    """Return in which scenarios the old model is too weak to judge an upgrade by, if in any."""
    if not results.weak_old_models:
        return None
    places = [
        f"{scenario} (seed {', '.join(map(str, seeds))})"
        for scenario, seeds in results.weak_old_models.items()
    ]
    return (
        f"Too weak to judge an upgrade by, because hardly better than raw pixels: the old model of "
        f"{'; '.join(places)}."
    )


_NOT_COUNTED = {
    "count": None,
    "note": "whether a model was trained on test classes was not counted",
}


def seen_note(results: Results) -> str | None:
    """Return why a model may have been trained on test classes, if one may."""
    counts = [result.get(SEEN, _NOT_COUNTED) for result in results.by_job.values()]
    return next((count["note"] for count in counts if count["count"] != 0), None)


def left_out_note(results: Results) -> str | None:
    """Return which seeds and how many jobs are left out so that seeds can be compared, if any."""
    sentences = [
        f"Seed {seed} is left out: it lacks {count} {'jobs' if count > 1 else 'job'}."
        for seed, count in results.missing_jobs.items()
    ]
    count = results.unshared_jobs
    if count:
        jobs = f"{count} finished jobs are" if count > 1 else "1 finished job is"
        sentences.append(f"{jobs} left out: not every seed has the same.")
    count = results.outdated_jobs
    if count:
        jobs = f"{count} finished jobs are" if count > 1 else "1 finished job is"
        sentences.append(
            f"{jobs} left out, measured with other validation images: --measure-again without "
            "--only measures all again."
        )
    return " ".join(sentences) or None


def flip_table(results: Results) -> PlainTable | None:
    """Return how many queries each method's upgrade turns from right to wrong."""

    def cell(scenario: str, method: str) -> Cell:
        if not results.has_cell(scenario, method):
            return NO_VALUE
        rates = [results.flips(scenario, method, rate) for rate in ("nfr", "pfr", "relative_nfr")]
        negative, positive, relative = (None if r is None else r.estimate for r in rates)
        if negative is None or positive is None or relative is None:
            return NO_VALUE
        shown, gained = percent_cell(negative), percent_cell(positive)
        others = (
            f"positive {gained.text} ({gained.small}); relative {relative.mean:.2f} "
            f"({max(relative.low, 0.0):.2f} to {relative.high:.2f})"
        )
        return Cell(shown.text, f"{shown.small}; {others}" if shown.small else others)

    note = (
        "Percent of the queries that find their class first with the old model and not with the "
        "new one, in the same old gallery. Small: the interval, the positive flips (the reverse), "
        "and the relative rate: 1 if the errors now have nothing to do with the old ones."
    )
    table = methods_by_scenarios(results, "Negative flips", note, compared_methods(results), cell)
    no_value = table is None or all(cell == NO_VALUE for row in table.rows for cell in row[1:])
    return None if no_value else table


def cost_table(results: Results) -> PlainTable | None:
    """Return the training images per second of each method, compared with plain training."""

    def cell(scenario: str, method: str) -> Cell:
        plain, cost = results.cost(scenario, NO_METHOD), results.cost(scenario, method)
        if cost is None:
            return NO_VALUE
        small = f"{clock(cost['seconds'])} per training"
        if plain is not None:
            ratio = plain["images_per_second"] / cost["images_per_second"]
            small = f"{ratio:.2f} × the time of none; {small}"
        return Cell(f"{cost['images_per_second']:,.0f}", small)

    trained = [method for method in compared_methods(results) if method not in MAPS]
    note = (
        "Training images per second of one process, for the fastest seed, while other jobs ran "
        "on the same machine: a rough measure. measurements/step_cost.py compares the methods "
        "side by side."
    )
    return methods_by_scenarios(results, "Cost", note, trained, cell)
