import json

import numpy as np
import pytest
import torch

import unibct
from tests.models.cases import small_model, trained_from
from tests.report.test_texts import EXACT, LOSS
from unibct.data.training_classes import NO_CLASSES, UNKNOWN_CLASSES
from unibct.errors import UserError
from unibct.evaluation.criterion import NOT_COMPATIBLE_RULE
from unibct.maps.vector_map import VectorMap
from unibct.models.blended_weights import blend_weights
from unibct.models.model_folder import save_model
from unibct.models.old_space import old_space_fingerprint
from unibct.report.model_card import write_model_card

TRAINING = {
    "method": "unibct",
    "data": "photos",
    "images": 5120,
    "classes": 300,
    "recipe": {"epochs": 6, "lr": 0.1, "seed": 1, "weights": None},
    "unreadable_images": ["a.jpg"],
    "unibct": "0.1.0",
}


@pytest.fixture
def folder(tmp_path):
    save_model(small_model(training=TRAINING, old_fingerprint="abc"), tmp_path / "shoes")
    return tmp_path / "shoes"


@pytest.fixture
def evaluation(tmp_path):
    """What `unibct evaluate --json` prints for two random sets of embeddings."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 6)
    centres = rng.normal(size=(20, 8))[labels]
    old, new = (centres + noise * rng.normal(size=centres.shape) for noise in (1.2, 0.6))
    result = unibct.evaluate(labels, old=old, new=new, repeats=50)
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(result.as_json()))
    return path


def test_a_card_says_what_is_known(folder, evaluation):
    int8 = EXACT | {"int8": "static", "loss": LOSS}
    for name, export in (("model", EXACT), ("model.int8", int8)):
        (folder / f"{name}.onnx.json").write_text(json.dumps(export))
    path = write_model_card(folder, evaluation)
    assert path == folder / "MODEL_CARD.md"
    text = path.read_text()
    result = json.loads(evaluation.read_text())
    for words in (
        "# shoes\n",
        "32 × 32 pixels (height × width), grey",
        "- images of another shape: stretch, bilinear",
        "- data: `photos`, 5,120 images of 300 classes",
        "- method: unibct",
        "- left out: 1 unreadable images",
        "- recipe: epochs 6, lr 0.1, seed 1\n",
        "The old model with the fingerprint `abc`",
        f"**{result['verdict']}**",
        f"| new→old | {100 * result['tests']['new→old'][result['criteria'][0]['metric']]:.2f} |",
        f"{result['at_old_threshold']['1e-2']['threshold']:.4f}",
        "- `model.onnx`, 2.3 MB: lowest cosine to torch 0.9999991 on 1,000 images\n",
        "1,234 queries in the old model's gallery",
        "It sees grey only",
    ):
        assert words in text, words
    # 30 pairs of classes would have to be above a threshold: 78 classes for 1e-2
    assert [row["carried"] for row in result["at_old_threshold"].values()] == [False] * 3
    assert "too few test classes to measure FAR 1e-2, 1e-3, 1e-4: take it as rough.\n" in text
    assert result["verdict"] == "compatible"
    assert "not shown to search" not in text


@pytest.mark.parametrize(
    ("basis", "single", "better", "new_classes"),
    [
        ("unseen", "compatible", True, True),
        ("unknown", "compatible", True, False),
        ("overridden", "compatible", True, False),
        ("unseen", "within noise", False, True),
    ],
)
def test_a_card_says_what_the_verdict_rests_on(
    folder, evaluation, basis, single, better, new_classes
):
    result = json.loads(evaluation.read_text())
    result["classes"]["basis"] = basis
    result["single_images"]["verdict"] = single
    evaluation.write_text(json.dumps(result))
    text = write_model_card(folder, evaluation).read_text()
    assert f"On single images, as the rows of a gallery are: **{single}**" in text
    assert ("It is not shown to search the old gallery better" not in text) == better
    assert ("It is not known to do as well on new classes" not in text) == new_classes


def test_a_card_shows_the_score_scale_and_what_it_does(tmp_path, evaluation):
    model = small_model(training=TRAINING, old_fingerprint="abc").with_score_scale(1.25)
    save_model(model, tmp_path / "m")
    text = write_model_card(tmp_path / "m").read_text()
    assert "Its score scale is 1.2500: multiply its scores with rows of that model" in text
    result = json.loads(evaluation.read_text()) | {"score_scale": 1.25}
    shares = {"far": 0.0123, "tar": 0.75}
    for row in result["at_old_threshold"].values():
        row["scaled"] = shares
    evaluation.write_text(json.dumps(result))
    text = write_model_card(tmp_path / "m", evaluation).read_text()
    heads = next(line for line in text.splitlines() if line.startswith("| FAR |"))
    assert "| score × 1.2500 there: FAR, TAR |" in heads
    row = next(line for line in text.splitlines() if line.startswith("| 1e-2 |"))
    assert row.count("|") == heads.count("|")
    assert row.split(" | ")[3] == "1.23 %, 75.00 %"


def test_a_card_says_that_weights_were_blended(tmp_path):
    old = small_model()
    new = trained_from(old, **TRAINING | {"recipe": {"warm_start": True, "seed": 1}})
    save_model(blend_weights(old, new, 0.25), tmp_path / "m")
    text = write_model_card(tmp_path / "m").read_text()
    assert f"its weights were blended: 0.25 of those of `{new.fingerprint}`, the rest" in text


def test_a_card_calls_no_rate_rough_that_was_measured(folder, evaluation):
    result = json.loads(evaluation.read_text())
    result["at_old_threshold"]["1e-2"]["carried"] = True
    del result["at_old_threshold"]["1e-3"]["carried"]  # of an earlier version
    evaluation.write_text(json.dumps(result))
    text = write_model_card(folder, evaluation).read_text()
    assert "too few test classes to measure FAR 1e-4: take it as rough.\n" in text


def test_a_card_explains_an_interval_that_ends_just_below_zero(folder, evaluation):
    result = json.loads(evaluation.read_text())
    for ceiling, explained in ((0.001, True), (-0.001, False), (None, False)):
        first = result["criteria"][0] | {"interval": [-0.03, -0.01], "ceiling": ceiling}
        if ceiling is None:
            del first["ceiling"]  # of an earlier version
        changed = result | {"criteria": [first, *result["criteria"][1:]]}
        evaluation.write_text(json.dumps(changed))
        text = write_model_card(folder, evaluation).read_text()
        assert (NOT_COMPATIBLE_RULE in text) == explained


def test_what_is_unknown_is_said_to_be_unknown(tmp_path):
    turn = VectorMap("procrustes", ((torch.eye(16), None),))
    model = small_model().adapted(turn, small_model(2))
    save_model(model, tmp_path / "m")
    text = write_model_card(tmp_path / "m", out=tmp_path / "card.md").read_text()
    assert text.count("not measured: give `unibct card --evaluation FILE`") == 2
    assert "Nothing is known of its quality" in text
    assert "pass a map (procrustes)" in text
    assert "queries only" in text
    save_model(small_model(), tmp_path / "n")
    text = write_model_card(tmp_path / "n").read_text()
    assert "comparable with its own only" in text
    assert "## Training\n\nunknown" in text


def test_wrong_files_are_named(folder, tmp_path):
    with pytest.raises(UserError, match="is not a model folder"):
        write_model_card(tmp_path)
    for text, message in (
        ('{"verdict": "compatible"}', r"odd.json lacks the entry 'tests'; give what `unibct ev"),
        ("[1, 2]", r"odd.json is not what `unibct evaluate --json` prints"),
    ):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(UserError, match=message):
            write_model_card(folder, tmp_path / "odd.json")
    assert not (folder / "MODEL_CARD.md").exists()


def test_the_title_is_the_folder_s_name_wherever_one_stands(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    card = write_model_card(".", out=tmp_path / "card.md")
    assert card.read_text().startswith(f"# {folder.name}")


def test_an_evaluation_of_other_models_is_refused(folder, evaluation, tmp_path):
    model = json.loads((folder / "model.json").read_text())
    result = json.loads(evaluation.read_text())
    assert result["fingerprints"] == {}  # arrays: nothing is known

    def card(model_folder=folder, **fingerprints):
        evaluation.write_text(json.dumps(result | {"fingerprints": fingerprints}))
        return write_model_card(model_folder, evaluation, tmp_path / "card.md").read_text()

    assert "## Verdict\n\n**compatible**" in card(query=model["fingerprint"], gallery="abc")
    assert "**compatible**" in card(gallery="abc")
    with pytest.raises(UserError, match=r"evaluation.json is an evaluation of another model.*by x"):
        card(query="x", gallery="abc")
    with pytest.raises(UserError, match=r"evaluation.json is .*another old model.* made for abc"):
        card(query=model["fingerprint"], gallery="x")
    save_model(small_model(), tmp_path / "free")
    free = json.loads((tmp_path / "free/model.json").read_text())
    assert "**compatible**" in card(tmp_path / "free", query=free["fingerprint"], gallery="abc")
    with pytest.raises(UserError, match=r"evaluation.json does not say which models it tested"):
        card(tmp_path / "free")
    (folder / "model.json").write_text(json.dumps(model | {"old_dim": 8}))
    in_old_space = old_space_fingerprint(model["fingerprint"])
    assert "**compatible**" in card(query=in_old_space, gallery="abc")


def test_first_weights_of_unknown_training_are_said(tmp_path):
    training = {"images": 6, "classes": 2, "method": "none"}
    for name, known in (("m", NO_CLASSES), ("n", UNKNOWN_CLASSES)):
        save_model(small_model(training=training, further_classes=known), tmp_path / name)
    said = ["not recorded" in write_model_card(tmp_path / name).read_text() for name in "mn"]
    assert said == [False, True]
