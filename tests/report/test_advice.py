from dataclasses import replace

from unibct.advice.advise import Advice
from unibct.advice.applicable import method_advice
from unibct.advice.costs import backfill_cost, mapping_cost
from unibct.advice.rates import Rates
from unibct.advice.scenario import find_scenario_of, unknown_scenario
from unibct.embeddings.strength import Strength
from unibct.report.advice import advice_lines

RATES = Rates(10, 20, 50, 40, 5, 1000)


def text_of(scenario, strength, rates=RATES):
    costs = {"mapping": mapping_cost(1000, RATES), "backfill": backfill_cost(72_000, RATES)}
    commands = {name: (f"unibct {name}",) for name in costs}
    methods = method_advice("ab", "bc", has_classifier=True)
    lists = (rates, costs, commands, ("a note",))
    advice = Advice(scenario, methods, strength, "9 images", "recipe x", "cpu", *lists)
    return "\n".join(advice_lines(advice))


def test_every_part_has_its_line():
    text = text_of(find_scenario_of("ab", "bc", None, "1"), Strength(0.5, 0.25))
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
        unknown_scenario(None, 2, "only numbers"), None, replace(RATES, old_forward=None)
    )
    assert "scenario    not known: only numbers" in text
    assert "? old, 2 new, ? in both" in text
    assert "old model   not measured" in text
    assert "reading 10, old model stored, new model 40" in text
