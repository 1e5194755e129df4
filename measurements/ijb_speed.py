"""Time and memory of the IJB-C protocol at its true size, on synthetic embeddings.

    python measurements/ijb_speed.py

About two minutes on two cores, most of it to write the files. The numbers of images, templates,
pairs and subjects are those of IJB-C. The embeddings are random, around one centre per subject.
In the same run the 1:1 scores are also computed as the field's script does it: gathered rows in
batches of 100,000. On a busy machine, compare the CPU seconds (of all threads) and not the
seconds of the clock.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from process_memory import memory

from unibct.evaluation.bootstrap import REPEATS, class_draws
from unibct.evaluation.metrics import sampled_metrics
from unibct.evaluation.protocols.ijb_faces import TEMPLATE, align
from unibct.evaluation.protocols.ijb_files import Meta, read_meta, rows_of
from unibct.evaluation.protocols.ijb_tests import evaluate_templates, pair_scores, search_galleries
from unibct.evaluation.search_test import SearchTest, listed_pairs
from unibct.evaluation.templates import Pooled, pool_templates
from unibct.evaluation.verification import HEADLINE_FAR

IMAGES, PROBES, GALLERIES = 469_375, 19_593, (1_772, 1_759)
GENUINE, PAIRS, DIM = 19_557, 15_658_489, 512
FIELD_BATCH = 100_000
SUBJECTS = sum(GALLERIES)

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Synthetic:
    """The templates: first those of the galleries, then those of the probes.

    Attributes:
        ids: (templates,).
        subjects: (templates,).
        image_templates: (images,) the row of each image's template in ``ids``.
    """

    ids: Array
    subjects: Array
    image_templates: Array


def main() -> None:
    """Write the files, then time each step."""
    rng = np.random.default_rng(0)
    synthetic = make_templates(rng)
    print(f"{'step':<44} {'seconds':>8} {'of CPU':>8} {'extra GB':>9}")
    with tempfile.TemporaryDirectory() as root:
        # Another process writes the files. In this one, the memory that writing leaves behind
        # would hide how much reading needs.
        writer = multiprocessing.Process(target=write_files, args=(Path(root), synthetic, rng))
        writer.start()
        writer.join()
        with step("read the meta files"):
            meta = read_meta(Path(root))
    subject_of = synthetic.subjects[np.argsort(synthetic.ids)]
    old, new = pooled_models(meta, synthetic, subject_of, rng)
    scores = compare_scoring(meta, old, new, rng)
    with step(f"search {PROBES:,} probes in {SUBJECTS:,}"):
        search = search_galleries(
            new.vectors[rows_of(new.ids, meta.probes.templates)],
            meta.probes.subjects,
            {
                name: (old.vectors[rows_of(old.ids, part.templates)], part.subjects)
                for name, part in meta.galleries.items()
            },
        )
    subjects = subject_of[rows_of(new.ids, meta.second)]
    pairs = listed_pairs(
        scores[meta.same], scores[~meta.same], subjects[meta.same], subjects[~meta.same]
    )
    test = SearchTest(pairs, search.ranks, meta.probes.subjects, SUBJECTS, SUBJECTS)
    with step(f"bootstrap of one test, {REPEATS} repeats"):
        sampled_metrics(test, class_draws(test), HEADLINE_FAR)
    del scores, test, pairs, subjects
    with step("whole evaluation"):
        result = evaluate_templates(meta, old=old, new=new)
        metrics = {name: result.values[name] for name in result.tests}
    print(f"{'  peak of the whole process in that step':<44} {'':>17} {memory('VmHWM'):>9.2f}")
    for name, values in metrics.items():
        print(name, *(f"{metric} {100 * value:.2f}" for metric, value in values.items()))
    for c in result.criteria:
        print(f"{c.metric}: {c.difference:+.4f} [{c.low:+.4f}, {c.high:+.4f}] {c.verdict}")
    time_alignment(rng)


def pooled_models(
    meta: Meta, synthetic: Synthetic, subject_of: Array, rng: np.random.Generator
) -> tuple[Pooled, Pooled]:
    """Return the templates of the old and of the new model; time the pooling of the new one.

    Args:
        meta: the meta files.
        synthetic: the templates.
        subject_of: (templates,) the subject of each template, in ascending order of their ids.
        rng: draws the embeddings.
    """
    centres = rng.standard_normal((SUBJECTS, DIM), dtype=np.float32)
    embeddings = rng.standard_normal((IMAGES, DIM), dtype=np.float32)
    embeddings *= 4
    embeddings += centres[synthetic.subjects[synthetic.image_templates]]
    with step(f"pool {IMAGES:,} × {DIM}"):
        new = pool_templates(embeddings, meta.templates, meta.media, scores=meta.scores)
    del embeddings
    noise = rng.standard_normal((len(new.ids), DIM), dtype=np.float32)
    return Pooled(new.ids, normalized_rows(centres[subject_of] + 2.5 * noise)), new


def time_alignment(rng: np.random.Generator) -> None:
    """Print how long it takes to align a face."""
    image = rng.integers(0, 256, (300, 250, 3), dtype=np.uint8)
    points = 1.8 * TEMPLATE + rng.normal(size=(5, 2))
    seconds, _ = repeated(lambda: [align(image, points) for _ in range(200)])
    wall, cpu = 1000 * seconds / 200
    print(f"align a face: {wall:.2f} ms, {cpu:.2f} of CPU")


def compare_scoring(meta: Meta, old: Pooled, new: Pooled, rng: np.random.Generator) -> Array:
    """Score all pairs, with the library and in the field's way; return the scores."""
    first, second = (rows_of(new.ids, side).astype(np.int32) for side in (meta.first, meta.second))
    seconds, scores = repeated(lambda: pair_scores(old.vectors, new.vectors, first, second))
    with step(f"score {PAIRS:,} pairs"):
        pair_scores(old.vectors, new.vectors, first, second)
    field_seconds = np.zeros(2)
    for start in range(0, PAIRS, FIELD_BATCH):
        batch = slice(start, start + FIELD_BATCH)
        begin = clocks()
        gathered = np.sum(old.vectors[first[batch]] * new.vectors[second[batch]], axis=-1)
        field_seconds += clocks() - begin
        assert np.allclose(gathered, scores[batch], atol=1e-5)
    for name, (wall, cpu) in (
        ("  the same, median of five", seconds),
        ("  the field's way", field_seconds),
        ("  ratio", field_seconds / seconds),
    ):
        print(f"{name:<44} {wall:>8.2f} {cpu:>8.2f}")
    order = rng.permutation(PAIRS)
    shuffled = first[order], second[order]
    with step("  the pairs in random order"):
        pair_scores(old.vectors, new.vectors, *shuffled)
    return scores


def make_templates(rng: np.random.Generator) -> Synthetic:
    """Return as many templates and images as IJB-C has. The ids have gaps."""
    templates = SUBJECTS + PROBES
    ids = rng.permutation(200_000)[:templates] + 1
    subjects = np.concatenate([np.arange(SUBJECTS), rng.integers(0, SUBJECTS, PROBES)])
    images = np.sort(
        np.concatenate([np.arange(templates), rng.integers(0, templates, IMAGES - templates)])
    )
    return Synthetic(ids, subjects, images)


def write_files(root: Path, synthetic: Synthetic, rng: np.random.Generator) -> None:
    """Write the meta files in their true layout."""
    folder = root / "meta"
    folder.mkdir()
    tids = synthetic.ids[synthetic.image_templates]
    media = rng.integers(0, 8, IMAGES)
    rows = zip(tids.tolist(), media.tolist(), strict=True)
    text = "".join(f"{i}.jpg {tid} {mid}\n" for i, (tid, mid) in enumerate(rows, start=1))
    (folder / "ijbc_face_tid_mid.txt").write_text(text)
    points = " ".join(f"{value:.3f}" for value in TEMPLATE.ravel().tolist())
    text = "".join(f"{i}.jpg {points} 0.9{i % 1000:03}\n" for i in range(1, IMAGES + 1))
    (folder / "ijbc_name_5pts_score.txt").write_text(text)

    ends = (0, GALLERIES[0], SUBJECTS, SUBJECTS + PROBES)
    for name, low, high in zip(
        ("gallery_G1", "gallery_G2", "probe_mixed"), ends[:-1], ends[1:], strict=True
    ):
        in_part = (synthetic.image_templates >= low) & (synthetic.image_templates < high)
        rows = synthetic.image_templates[in_part]
        lines = zip(synthetic.ids[rows].tolist(), synthetic.subjects[rows].tolist(), strict=True)
        text = "".join(f"{tid},{sid},img/{tid}.jpg\n" for tid, sid in lines)
        (folder / f"ijbc_1N_{name}.csv").write_text("TEMPLATE_ID,SUBJECT_ID,FILENAME\n" + text)
    write_pairs(folder / "ijbc_template_pair_label.txt", synthetic, rng)


def write_pairs(path: Path, synthetic: Synthetic, rng: np.random.Generator) -> None:
    """Write the list of pairs: a gallery template, a probe template, and 1 for the same subject.

    A pair is drawn as a cell of the table of gallery templates and probes.
    """
    probe_subjects = synthetic.subjects[SUBJECTS:]
    genuine = (probe_subjects * PROBES + np.arange(PROBES))[:GENUINE]
    cells = np.unique(rng.integers(0, SUBJECTS * PROBES, PAIRS * 5 // 4))
    cells = cells[probe_subjects[cells % PROBES] != cells // PROBES]
    dropped = rng.permutation(len(cells))[: len(cells) - (PAIRS - GENUINE)]
    cells = np.sort(np.concatenate([np.delete(cells, dropped), genuine]))
    labels = (probe_subjects[cells % PROBES] == cells // PROBES).astype(np.int64)
    with path.open("w") as file:
        for start in range(0, PAIRS, 1_000_000):
            part = cells[start : start + 1_000_000]
            columns = (
                synthetic.ids[part // PROBES].tolist(),
                synthetic.ids[SUBJECTS + part % PROBES].tolist(),
                labels[start : start + 1_000_000].tolist(),
            )
            file.write("".join(f"{a} {b} {same}\n" for a, b, same in zip(*columns, strict=True)))


def normalized_rows(vectors: Array) -> Array:
    """Return the rows scaled to length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def clocks() -> Array:
    """Return the seconds of the clock and of the CPU."""
    return np.array([time.perf_counter(), time.process_time()])


def repeated(run: Callable[[], Any]) -> tuple[Array, Any]:
    """Return the median times of five runs, and the last result."""
    seconds: list[Array] = []
    result = None
    for _ in range(5):
        begin = clocks()
        result = run()
        seconds.append(clocks() - begin)
    return np.median(seconds, axis=0), result


@contextmanager
def step(name: str) -> Generator[None]:
    """Print the time of a block, and its peak memory beyond the memory before it (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    begin = clocks()
    yield
    wall, cpu = clocks() - begin
    extra = memory("VmHWM") - before
    print(f"{name:<44} {wall:>8.2f} {cpu:>8.2f} {extra:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
