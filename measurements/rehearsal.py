"""A rehearsal of the paper's runs on miniature sets, from RecordIO files to tables.

    python measurements/rehearsal.py --scenarios open-class --out runs/rehearsal

Minutes. Draws miniatures of MS1Mv3 and IJB-C in their real file layouts, then splits, trains and
evaluates each scenario with its recipe ms1mv3-SCENARIO, made smaller. It shows that every step
works; the numbers say nothing about faces. What an earlier run has left in the folder is used.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from miniatures import make_ijbc, make_ms1mv3

from unibct.data.readers import open_images
from unibct.data.scenarios import SCENARIOS, write_split
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.evaluation import Evaluation
from unibct.models.model import Model
from unibct.progress import terminal_progress
from unibct.report.terminal import print_evaluation
from unibct.training.plan import require_epochs_left
from unibct.training.recipe import load_recipe
from unibct.training.train import train

METHOD = "unibct"
# Changes that make a recipe small: few epochs with a warm-up and a refinement, small batches.
SMALL = ("epochs=3", "warmup_epochs=1", "milestones=[2]", "refresh_epochs=[2]", "batch_size=32")
IDENTITIES, SUBJECTS = 100, 60  # of the miniature MS1Mv3 and of the miniature IJB-C


def recipe_name(scenario: str) -> str:
    """Return the name of a scenario's recipe."""
    return f"ms1mv3-{scenario}"


def rehearse(
    out: Path,
    scenarios: Sequence[str] = tuple(SCENARIOS),
    *,
    overrides: Sequence[str] = (),
    identities: int = IDENTITIES,
    subjects: int = SUBJECTS,
    device: str = "auto",
) -> dict[str, Evaluation]:
    """Make the sets, then split, train and evaluate each scenario with its recipe.

    ``overrides`` are ``key=value`` changes of the recipes, after those that make them small.
    """
    settings = [*SMALL, *overrides]
    for scenario in scenarios:  # raises an error for a bad name or setting before any work
        SCENARIOS.find(scenario)
        require_epochs_left(METHOD, load_recipe(recipe_name(scenario), settings))
    faces, ijbc = out / f"ms1mv3-{identities}", out / f"ijbc-{subjects}"
    if not faces.is_dir():
        make_ms1mv3(faces, identities=identities, images_each=6)
    if not ijbc.is_dir():
        make_ijbc(ijbc, subjects=subjects)

    def trained(images: Path, recipe: str, folder: Path, label: str, old: Model | None) -> Model:
        return train(
            open_images(faces, images),
            load_recipe(recipe_name(recipe), settings),
            folder,
            old=old,
            method=None if old is None else METHOD,
            resume=True,
            validation=0,
            device=device,
            label=label,
        )

    evaluations: dict[str, Evaluation] = {}
    for scenario in scenarios:
        lists, new_folder = out / scenario / "split", out / scenario / "new"
        if not lists.is_dir():
            write_split(open_images(faces), scenario, lists)
        old_folder = out / f"old-{SCENARIOS[scenario].sample}"
        # Not the scenario's own recipe: in identical-data that has the new model's larger network.
        old = trained(
            lists / "old.txt", "extended-data", old_folder, f"{scenario}: the old model", None
        )
        trained(lists / "new.txt", scenario, new_folder, f"{scenario}: the new model", old)
        evaluations[scenario] = evaluate(
            ijbc,
            old=old_folder,
            new=new_folder,
            protocol="ijbc",
            device=device,
            cache=out / "cache",
        )
    return evaluations


def main() -> None:
    """Rehearse the chosen scenarios, and print an evaluation of each."""
    parser = argparse.ArgumentParser(
        description="A rehearsal of the paper's runs on miniature sets"
    )
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="with commas between them")
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsal"))
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the recipes")
    options = parser.parse_args()
    with terminal_progress():
        evaluations = rehearse(options.out, options.scenarios.split(","), overrides=options.set)
    for scenario, evaluation in evaluations.items():
        print(f"\n{scenario}")
        print_evaluation(evaluation)


if __name__ == "__main__":
    main()
