from tests.models.cases import small_model
from unibct.evaluation.weight_choice import TriedWeights, WeightChoice
from unibct.report.weight_choice import weight_choice_text


def test_every_share_has_its_line_and_the_chosen_one_is_marked():
    tried = (TriedWeights(0.5, 0.6, 0.515, 0.55), TriedWeights(1.0, 0.5, 0.5, 0.6))
    text = weight_choice_text(WeightChoice(0.5, small_model(), 0.48, tried))
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("top-1 of old queries in the old gallery: 48.00 %\n")
    assert lines[2] == ["0.5", "51.50", "%", "55.00", "%", "0.6000", "chosen"]
    assert lines[3] == ["1", "50.00", "%", "60.00", "%", "0.5000"]
