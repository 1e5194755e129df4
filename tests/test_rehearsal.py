"""The paper's recipes, and a rehearsal of its runs: measurements/rehearsal.py."""

import csv
import re
import sys
from importlib import import_module, resources
from pathlib import Path

import pytest

from unibct.data.scenarios import SCENARIOS
from unibct.errors import UserError
from unibct.models.model_folder import load_model
from unibct.training.recipe import Recipe, load_recipe

sys.path.append(str(Path(__file__).parent.parent / "measurements"))
rehearsal = import_module("rehearsal")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_recipes_are_the_paper_s_and_quote_its_results(scenario):
    larger = scenario == "identical-data"
    recipe = load_recipe(rehearsal.recipe_name(scenario))
    architecture = "resnet50" if larger else "resnet18"
    assert recipe == Recipe(architecture=architecture, dim=512, flip=True)
    name = f"{rehearsal.recipe_name(scenario)}.toml"
    text = (resources.files("unibct.training") / "recipes" / name).read_text(encoding="utf-8")
    table = (resources.files("unibct.report") / "paper_results.csv").read_text(encoding="utf-8")
    rows = {(r["scenario"], r["method"]): r for r in csv.DictReader(table.splitlines())}
    old, unibct, free = (rows[scenario, method] for method in ("old", "unibct", "none"))
    assert f"old self {old['self_tar_1e-4']} / {old['self_top1']} / {old['self_top5']}" in text
    assert (
        f"cross    {unibct['cross_tar_1e-4']} / {unibct['cross_top1']} / {unibct['cross_top5']}"
        in text
    )
    selves = (
        " / ".join(r[f"self_{m}"] for m in ("tar_1e-4", "top1", "top5")) for r in (unibct, free)
    )
    assert "new self {}, of a free model {}".format(*selves) in text
    for line in re.findall(r"#   unibct \w+ .*", text):
        for option in re.findall(r"--recipe (\S+)", line):
            load_recipe(option)


def test_unknown_scenarios_and_settings_are_refused_before_anything_is_drawn(tmp_path):
    with pytest.raises(UserError, match="unknown scenario"):
        rehearsal.rehearse(tmp_path / "r", ["open-class", "closed"])
    with pytest.raises(UserError, match="unknown setting 'epoch', did you mean 'epochs'"):
        rehearsal.rehearse(tmp_path / "r", overrides=["epoch=3"])
    with pytest.raises(UserError, match="leaves none of 1 epochs"):
        rehearsal.rehearse(tmp_path / "r", overrides=["epochs=1"])
    assert not (tmp_path / "r").exists()


@pytest.mark.slowest
def test_every_recipe_runs_from_recordio_to_tables_and_is_taken_up_again(tmp_path, monkeypatch):
    options = {"identities": 7, "subjects": 2, "device": "cpu"}
    overrides = [
        "epochs=1",
        "warmup_epochs=0",
        "milestones=[]",
        "refresh_epochs=[]",
        "batch_size=16",
    ]
    evaluations = rehearsal.rehearse(tmp_path, overrides=overrides, **options)
    assert list(evaluations) == list(SCENARIOS)
    for scenario, evaluation in evaluations.items():
        assert set(evaluation.values["new→old"]) >= {"top-1", "top-5", "top-10", "TPIR@0.01"}
        model = load_model(tmp_path / scenario / "new")
        assert model.training["method"] == "unibct"
        assert (model.architecture == "resnet50") == (scenario == "identical-data")
        assert model.input.frame.shape == (112, 112, 3)
    monkeypatch.setattr("unibct.training.train.TrainingLoop", None)  # training again would need it
    again = rehearsal.rehearse(tmp_path, overrides=overrides, **options)
    assert {k: e.values["new→old"] for k, e in again.items()} == {
        k: e.values["new→old"] for k, e in evaluations.items()
    }
