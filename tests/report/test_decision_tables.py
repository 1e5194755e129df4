from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.noisy_classes import noisy_classes
from unibct.embeddings.recall import ModelRecall
from unibct.evaluation.protocols.pairs import evaluate_pairs
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.report.decision_tables import decision_tables, old_model_text, threshold_table
from unibct.report.plain_table import NO_VALUE, Cell


@pytest.fixture(scope="module")
def evaluation():
    old, labels = noisy_classes(noise=1.2, images=16)
    new, _ = noisy_classes(noise=0.4, images=16, seed=1)
    return evaluate_embeddings(
        labels, old=old, new=new, repeats=100, backfill_curve=True, score_scale=1.25
    )


def test_every_table_shows_its_numbers(evaluation):
    single, thresholds, needed, flips, clients, blends, curves = decision_tables(evaluation)
    found = evaluation.single_images
    assert single.note.endswith(f"Verdict on single images: {found.verdict}.")
    assert [[cell.text for cell in row[:3]] for row in single.rows] == [
        [c.metric + " (not in the verdict)" * (not c.decides), f"{100 * c.old_self:.2f}",
         f"{100 * c.cross:.2f}"]
        for c in found.compared
    ]  # fmt: skip
    assert [row[0].text for row in needed.rows] == ["FAR 1e-2", "FAR 1e-3", "FAR 1e-4"]
    at = evaluation.at_old_threshold[0]
    rows = {row[0].text: row[1:] for row in thresholds.rows}
    assert len(rows) == 4 * 3
    for name, accepted in {
        "FAR 1e-2, old": at.old,
        "FAR 1e-2, new": at.cross,
        "FAR 1e-2, new, with the score map": at.mapped,
        "FAR 1e-2, new, times the score scale": at.scaled,
        "FAR 1e-4, new": evaluation.at_old_threshold[2].cross,
    }.items():
        tar, far = rows[name]
        assert tar.text == f"{100 * accepted.tar:.2f}"
        assert far.text == f"{100 * accepted.far:.4f}"
        low, high = accepted.far_interval
        assert far.small == f"{100 * low:.4f} to {100 * high:.4f}"
    assert [cell.text for cell in needed.rows[0][1:]] == [
        f"{at.threshold:.4f}", f"{at.new_threshold:.4f}", f"{100 * at.own_tar:.2f}"
    ]  # fmt: skip
    low, high = at.new_interval
    assert needed.rows[0][2].small == f"{low:.4f} to {high:.4f}"
    assert flips.rows[0][1].text == f"{100 * evaluation.flips.nfr.mean:.2f}"
    assert clients.note.endswith(f"Verdict: {evaluation.old_clients_verdict}.")
    assert clients.rows[1][0].text == "top-1"
    queries = evaluation.blended_queries
    gain, more = (
        next(c for c in criteria if c.metric == "top-1")
        for criteria in (queries.minus_old_self, queries.minus_cross)
    )
    shown = next(row for row in blends.rows if row[0].text == "top-1")
    assert [cell.text for cell in shown[1:]] == [
        f"{100 * evaluation.values['blend→old']['top-1']:.2f}",
        f"{100 * gain.difference:+.2f}",
        f"{100 * more.difference:+.2f}",
    ]
    assert shown[2].small == f"{100 * gain.low:+.2f} to {100 * gain.high:+.2f}"
    assert "α = 0.5 (not chosen on other classes)" in blends.note
    curve = evaluation.backfill_curves["random"]
    top_1 = next(row for row in curves.rows if row[0].text == "top-1, in random order")
    assert top_1[1].text == f"{100 * evaluation.values['new→old']['top-1']:.2f}"
    assert top_1[3].text == f"{100 * evaluation.values['new→new']['top-1']:.2f}"
    assert top_1[5].text == f"{100 * curve.dip('top-1'):+.2f}"
    assert curves.heads[1:4] == ("0 %", "52 %", "100 %")
    assert curve.shares[11] == pytest.approx(11 / 21, abs=0.01)
    assert top_1[2].text == f"{100 * curve.values['top-1'][11]:.2f}"
    for table in (thresholds, needed, flips, clients, blends, curves):
        assert all(len(row) == len(table.heads) for row in table.rows)


def test_the_note_says_whether_thresholds_must_be_set_again():
    old, labels = noisy_classes(classes=90, images=4, noise=1.2)  # enough for FAR 1e-2
    same = evaluate_embeddings(labels, old=old, new=old, repeats=20)
    few = " There are too few test classes to judge FAR 1e-3, 1e-4."
    rule = "twice as many impostors pass, and at most 5 % of the matches at new thresholds"
    assert threshold_table(same).note.startswith("The old thresholds for FAR 1e-2 can stay: at ")
    assert threshold_table(same).note.endswith(f"{rule} are lost.{few}")
    enough = replace(same, carried_fars=(1e-4, 1e-3, 1e-2))
    assert threshold_table(enough).note.startswith("The old thresholds can stay: ")
    lower = np.hstack([old, 3 * np.random.default_rng(0).normal(size=old.shape)])
    padded = np.hstack([old, 0 * old])
    changed = threshold_table(evaluate_embeddings(labels, old=padded, new=lower, repeats=20))
    assert changed.note.startswith("At the old thresholds for FAR 1e-2 new queries lose")
    assert "set the thresholds again, or use" in changed.note
    assert changed.note.endswith(few)
    assert changed.rows[3] == (Cell("FAR 1e-2, new, times the score scale"), NO_VALUE, NO_VALUE)
    scaled = evaluate_embeddings(labels, old=padded, new=lower, repeats=20, score_scale=1.5)
    note = threshold_table(scaled).note
    assert "set the thresholds again, multiply new scores by 1.5000, or use" in note


def test_the_note_says_nothing_that_the_classes_cannot_carry():
    """The same system with other noise: FAR 1e-3 of 12 classes depends on one or two pairs."""
    old, labels = noisy_classes(classes=12, images=8, noise=0.6, seed=2)
    new, _ = noisy_classes(classes=12, images=8, noise=0.6, seed=3)
    evaluation = evaluate_embeddings(labels, old=old, new=new, repeats=20)
    assert any(row.needs_new_threshold for row in evaluation.at_old_threshold)
    note = threshold_table(evaluation).note
    assert note == "There are too few test classes to say anything at FAR 1e-2, 1e-3, 1e-4."


def test_a_pair_set_has_no_such_table():
    vectors, same = np.random.default_rng(0).normal(size=(40, 8)), np.arange(20) % 2 == 0
    assert decision_tables(evaluate_pairs(same, old=vectors, new=vectors)) == []


def test_the_text_on_the_old_model_says_if_it_is_too_weak(evaluation):
    strong = replace(evaluation, old_model=ModelRecall(0.5, 0.1))
    assert old_model_text(strong) == "old model: recall@1 50.0 % (raw pixels 10.0 %)"
    weak = replace(evaluation, old_model=ModelRecall(0.12, 0.1))
    assert weak.verdict == "old model too weak"
    assert old_model_text(weak).startswith(
        "The old model is too weak to judge an upgrade by: recall@1 12.0 % (raw pixels 10.0 %)."
    )
    assert old_model_text(weak).endswith("embed the gallery again.")
    easy = old_model_text(replace(evaluation, old_model=ModelRecall(0.988, 1.0)))
    assert "embed the gallery again" not in easy
    assert easy.endswith("These test images are too easy: test on images that differ more.")
    assert old_model_text(replace(evaluation, old_model=None)) == ""


def test_few_classes_colour_no_cell_as_a_verdict():
    old, labels = noisy_classes(noise=1.2, images=16)
    new, _ = noisy_classes(noise=0.4, images=16, seed=1)
    few = labels < 6
    evaluation = evaluate_embeddings(labels[few], old=old[few], new=new[few], repeats=100)
    kinds = {cell.kind for t in decision_tables(evaluation) for row in t.rows for cell in row}
    assert evaluation.verdict == "within noise"
    assert not kinds & {"compatible", "not-compatible"}
