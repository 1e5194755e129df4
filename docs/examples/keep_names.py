"""Identities that were named under the old model keep their names through an upgrade and back.

python docs/examples/keep_names.py OLD NEW FOLDER   # two models, such as those of `unibct demo`
"""

import sys
from pathlib import Path

import unibct
from unibct.gallery.gallery import NameCounts, count_names

FAR = 1e-3
LINE = "{:<16}{:>7}{:>7}  {:>7}{:>7}{:>7}  {:>7}{:>7}{:>7}"
Counts = list[tuple[NameCounts, NameCounts]]


def parted(images: unibct.ImageSet, share: float) -> tuple[unibct.ImageSet, unibct.ImageSet]:
    """Return a share of each class's images, and the others."""
    sets = unibct.split(images.labels, "open-data", fraction=share)
    return images.select(sets.old), images.select(sets.new)


def main(old: str, new: str, folder: Path) -> Counts:
    """Name people by the old model, upgrade, add photographs, backfill half, and roll back."""
    paper = folder / "certificate.json"  # measured on other classes than those that are named
    unibct.evaluate("glyphs:val", old=old, new=new, certify=paper)
    hard_wired = unibct.Certificate.read(paper).threshold("old→old", FAR)  # in an old client
    named, others = parted(unibct.open_images("glyphs:test"), 0.2)
    photographs, others = parted(others, 0.1)
    queries, _ = parted(others, 0.3)
    gallery = unibct.Gallery.create(folder / "gallery", old, certificates=[paper])
    counts: Counts = []

    def look(stage: str) -> None:
        by_rate = gallery.search(queries, k=1, far=FAR)
        by_score = gallery.search(queries, k=1, old_scores=True, threshold=hard_wired)
        counts.append((count_names(by_rate), count_names(by_score)))
        rows = [*gallery.status().live.values(), 0][:2]
        print(LINE.format(stage, *rows, *(n for c in counts[-1] for n in c.as_json().values())))

    print(f"{len(queries):,} queries, at FAR {FAR:g} and by old scores above {hard_wired:.4f}")
    print(LINE.format("after", "old", "new", *("right", "wrong", "lost") * 2))
    gallery.add(named)
    look("naming")
    gallery.upgrade(new, [paper])
    look("upgrade")
    gallery.add(photographs)  # of the same people, by the new model
    look("new photographs")
    gallery.backfill(named, share=0.5)
    look("half a backfill")
    gallery.rollback()
    look("rollback")
    return counts


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
