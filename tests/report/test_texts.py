from dataclasses import replace

from tests.models.cases import small_model
from tests.report.told_story import told_story
from unibct.advice.advise import Advice, backfill_cost, mapping_cost, method_advice
from unibct.advice.measured import FoundScenario, Rates, find_scenario_of
from unibct.embeddings.recall import ModelRecall
from unibct.evaluation.weight_choice import TriedWeights, WeightChoice
from unibct.report.texts import advice_lines, export_text, outcome, story_table, weight_choice_text

EXACT = {
    "file": "model.onnx",
    "bytes": 2_340_000,
    "agreement": {"images": 1000, "lowest": 0.9999991, "mean": 1.0, "worst": "a"},
}
LOSS = {
    "gallery": "old",
    "queries": 1234,
    "lowest_cosine": 0.9,
    "mean_cosine": 0.99,
    "speed": 1.5,
    "metrics": [
        {"metric": "top-1", "exact": 0.5, "int8": 0.49, "difference": -0.01, "interval": [-0.02, 0]}
    ],
}


def test_an_exact_file_in_one_line():
    assert export_text(EXACT) == (
        "model.onnx: 2.3 MB; agrees with the model on 1,000 images, lowest cosine 0.9999991"
    )


def test_an_int8_file_with_its_loss():
    lines = export_text(EXACT | {"int8": "static", "loss": LOSS}).splitlines()
    assert "; before int8 it agrees with the model on 1,000 images" in lines[0]
    assert lines[1].startswith("int8 (static ranges): 1,234 queries in the old model's gallery; ")
    assert "0.9900 on average, 0.9000 at worst; 1.50 times the speed" in lines[1]
    assert " ".join(lines[2].split()) == (
        "top-1 exact 50.00 % int8 49.00 % -1.00 points (-2.00 to +0.00)"
    )


RATES = Rates(10, 20, 50, 40, 5, 1000)


def text_of(scenario, strength, rates=RATES):
    costs = {"mapping": mapping_cost(1000, RATES), "backfill": backfill_cost(72_000, RATES)}
    commands = {name: (f"unibct {name}",) for name in costs}
    methods = method_advice("ab", "bc", has_classifier=True)
    lists = (rates, costs, commands, ("a note",))
    advice = Advice(scenario, methods, strength, "9 images", "recipe x", "cpu", *lists)
    return "\n".join(advice_lines(advice))


def test_every_part_has_its_line():
    text = text_of(find_scenario_of("ab", "bc", None, "1"), ModelRecall(0.5, 0.25))
    assert "scenario    open-class: 1 classes are new" in text
    assert "recall@1 50.0 % (raw pixels 25.0 %), on 9 images" in text
    assert "bct              no: bct cannot be used here" in text
    assert "and contrast  (default)" in text
    # 72,000 rows: an hour of reading and half an hour of embedding
    assert "backfill: about 1:30:00 (estimated) to embed 72,000 gallery images again" in text
    assert "  reading 1:00:00, new embeddings 30:00" in text
    assert "  $ unibct backfill" in text
    assert text.endswith("note: a note")


def test_what_is_not_known_is_called_so():
    text = text_of(
        FoundScenario((), "only numbers", None, 2, None), None, replace(RATES, old_forward=None)
    )
    assert "scenario    not known: only numbers" in text
    assert "? old, 2 new, ? in both" in text
    assert "old model   not measured" in text
    assert "reading 10, old model stored, new model 40" in text


def test_every_share_has_its_line_and_the_chosen_one_is_marked():
    tried = (TriedWeights(0.5, 0.6, 0.515, 0.55), TriedWeights(1.0, 0.5, 0.5, 0.6))
    text = weight_choice_text(WeightChoice(0.5, small_model(), 0.48, tried))
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("top-1 of old queries in the old gallery: 48.00 %\n")
    assert lines[2] == ["0.5", "51.50", "%", "55.00", "%", "0.6000", "chosen"]
    assert lines[3] == ["1", "50.00", "%", "60.00", "%", "0.5000"]


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
