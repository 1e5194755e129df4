"""A rehearsal of the paper's runs on miniature sets, from RecordIO files to tables.

Only the size differs from the real runs. The recipes, the file layouts and the code are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unibct.data.readers import open_images
from unibct.data.scenarios import SCENARIOS, write_split
from unibct.evaluation.evaluate import evaluate
from unibct.evaluation.evaluation import Evaluation
from unibct.examples.miniatures import make_ijbc, make_ms1mv3
from unibct.models.model import Model
from unibct.training.plan import require_epochs_left
from unibct.training.recipe import load_recipe
from unibct.training.train import train

METHOD = "unibct"
# Changes that make a recipe small: few epochs with a warm-up and a refinement, small batches.
SMALL = ("epochs=3", "warmup_epochs=1", "milestones=[2]", "refresh_epochs=[2]", "batch_size=32")
IDENTITIES = 100
SUBJECTS = 60


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

    Args:
        out: folder for the sets, splits and models; what is already there is used.
        scenarios: names from ``SCENARIOS``.
        overrides: ``key=value`` changes of the recipes, after those that make them small.
        identities: number of classes in the miniature MS1Mv3.
        subjects: number of subjects in the miniature IJB-C.
        device: ``auto``, ``cpu``, ``cuda``, …
    """
    for scenario in scenarios:
        SCENARIOS.find(scenario)
    settings = [*SMALL, *overrides]
    for scenario in scenarios:  # raises an error for a bad setting before any work
        require_epochs_left(METHOD, load_recipe(recipe_name(scenario), settings))
    faces, ijbc = out / f"ms1mv3-{identities}", out / f"ijbc-{subjects}"
    if not faces.is_dir():
        make_ms1mv3(faces, identities=identities, images_each=6)
    if not ijbc.is_dir():
        make_ijbc(ijbc, subjects=subjects)
    rehearsal = _Rehearsal(out, faces, ijbc, settings, device)
    return {scenario: rehearsal.run(scenario) for scenario in scenarios}


@dataclass(frozen=True)
class _Rehearsal:
    """Where the sets are, and how the models are trained.

    Attributes:
        out: folder for the splits and the models.
        faces: the miniature MS1Mv3.
        ijbc: the miniature IJB-C.
        settings: ``key=value`` changes of the recipes.
        device: ``auto``, ``cpu``, ``cuda``, …
    """

    out: Path
    faces: Path
    ijbc: Path
    settings: Sequence[str]
    device: str

    def run(self, scenario: str) -> Evaluation:
        """Split the set, train the old and the new model, and evaluate them."""
        lists = self.out / scenario / "split"
        if not lists.is_dir():
            write_split(open_images(self.faces), scenario, lists)
        old_folder = self.out / f"old-{SCENARIOS[scenario].sample}"
        # Not the scenario's own recipe: in identical-data that has the new model's larger network.
        old = self._train(lists / "old.txt", "extended-data", old_folder, "old", scenario)
        new_folder = self.out / scenario / "new"
        self._train(lists / "new.txt", scenario, new_folder, "new", scenario, old)
        return evaluate(
            self.ijbc,
            old=old_folder,
            new=new_folder,
            protocol="ijbc",
            device=self.device,
            cache=self.out / "cache",
        )

    def _train(
        self,
        images: Path,
        recipe: str,
        folder: Path,
        role: str,
        scenario: str,
        old: Model | None = None,
    ) -> Model:
        """Train a model, or load it if an earlier run has finished it.

        Args:
            images: list of image ids.
            recipe: the scenario whose recipe is used.
            folder: of the model.
            role: ``old`` or ``new``, for the progress.
            scenario: for the progress.
            old: the old model, if this one is to be compatible.
        """
        return train(
            open_images(self.faces, images),
            load_recipe(recipe_name(recipe), self.settings),
            folder,
            old=old,
            method=None if old is None else METHOD,
            resume=True,
            validation=0,
            device=self.device,
            label=f"{scenario}: the {role} model",
        )
