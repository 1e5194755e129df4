from dataclasses import replace

from tests.report.told_story import told_story
from unibct.report.gallery_story import outcome, story_table

STORY = told_story()


def test_each_stage_is_a_line():
    table = story_table(STORY)
    assert [[cell.text for cell in row] for row in table.rows[:3]] == [
        ["before", "old model", "1,200", "0", "60.00", "50", "10", "40"],
        ["upgrade", "new model", "1,200", "0", "61.00", "51", "10", "39"],
        ["backfill 25%", "new model", "900", "300", "62.00", "52", "10", "38"],
    ]
    assert len(table.rows) == len(STORY.stages)
    assert "100 queries of 5 classes" in table.note
    assert "threshold for FAR 1e-3" in table.note
    assert "same first row with the same score as before" in table.note


def test_without_a_threshold_the_note_says_so():
    assert "however low its score" in story_table(replace(STORY, far=None)).note


def test_what_went_otherwise_is_said():
    assert outcome(replace(STORY, restored=None)) == []
    assert "another first row or score" in outcome(replace(STORY, restored=False))[0]
    told = outcome(replace(STORY, restored=None, forced="within noise", stopped="no reason"))
    assert told[0].startswith("The verdict is within noise, so the upgrade was forced")
    assert told[1] == "It ends here: no reason."
