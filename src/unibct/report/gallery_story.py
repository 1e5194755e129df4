"""The table of the demo's gallery: how it searches after each step of an upgrade."""

from unibct.evaluation.resolution import rate_name
from unibct.examples.demo_gallery import GalleryStory, Stage
from unibct.report.plain_table import Cell, PlainTable

_HEADS = (
    "after",
    "searched by",
    "rows: by old model",
    "rows: by new model",
    "top-1, %",
    "right names",
    "wrong names",
    "lost names",
)


def story_table(story: GalleryStory) -> PlainTable:
    """Return the stages of the upgrade, one line each."""
    return PlainTable(
        "The upgrade, carried out on a gallery",
        " ".join([_names(story), *outcome(story)]),
        _HEADS,
        tuple(_row(stage) for stage in story.stages),
    )


def outcome(story: GalleryStory) -> list[str]:
    """Return what a reader should know besides the numbers, a sentence each."""
    sentences: list[str] = []
    if story.forced:
        sentences.append(f"The verdict is {story.forced}, so the upgrade was forced (--force).")
    if story.restored:
        sentences.append(
            "After the rollback every query found the same first row with the same score as before."
        )
    elif story.restored is not None:
        sentences.append(
            "After the rollback some queries found another first row or score than before!"
        )
    if story.stopped:
        sentences.append(
            f"It ends here: {story.stopped}{'' if story.stopped.endswith('?') else '.'}"
        )
    return sentences


def _names(story: GalleryStory) -> str:
    """Return what the table counts."""
    queries = story.stages[0].first.queries if story.stages else 0
    where = (
        "however low its score"
        if story.far is None
        else f"above the certificate's threshold for FAR {rate_name(story.far)}"
    )
    return (
        f"{queries:,} queries of {story.classes:,} classes that no model has seen. A query's name "
        f"is the label of the first row {where}; it is lost if there is none."
    )


def _row(stage: Stage) -> tuple[Cell, ...]:
    named = stage.named
    return (
        Cell(stage.title),
        Cell(f"{stage.searching} model"),
        Cell(f"{stage.old_rows:,}"),
        Cell(f"{stage.new_rows:,}"),
        Cell(f"{100 * stage.top_1:.2f}"),
        *(Cell(f"{count:,}") for count in (named.right, named.wrong, named.lost)),
    )
