"""Train, be killed at random moments and continue, again and again; then print the number of kills.

    python -m tests.training.kill_worker OUT WORKERS SEED

Each life is a fork of this process, so that none needs to load torch again. A moment is a training
step, a batch that is embedded, or a file operation; a life ends just before one of them.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch

from unibct.data.readers import open_images
from unibct.embeddings import extraction
from unibct.models.model import Model
from unibct.models.model_folder import load_model
from unibct.training import run_folder
from unibct.training.recipe import load_recipe
from unibct.training.step import TrainingStep
from unibct.training.train import train

SETTINGS = ["epochs=4", "batch_size=16", "lr_warmup_epochs=0", "warmup_epochs=1"]
SETTINGS += ["refresh_epochs=[2]", "flip=true", "crop=0.1", "size=16"]


class Fate:
    """Kills the process before its n-th moment."""

    def __init__(self, moments: int) -> None:
        self.left = moments

    def __call__(self, function):
        def watched(*arguments, **options):
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return watched


def live(out: Path, workers: int, old: Model, method: str, moments: int) -> None:
    """Train for a number of moments, then be killed."""
    fate = Fate(moments)
    run_folder.remove_checkpoints = lambda folder: None  # the test compares the last one
    TrainingStep.take = fate(TrainingStep.take)
    Model.embed_pixels = fate(Model.embed_pixels)
    os.fsync = fate(os.fsync)
    for name in ("rename", "replace", "mkdir", "unlink"):
        setattr(Path, name, fate(getattr(Path, name)))
    images = open_images("glyphs:val").select(range(70))
    recipe = load_recipe("glyphs", SETTINGS)
    options = {"old": old, "method": method, "workers": workers, "checkpoint_every": 2}
    train(images, recipe, out, resume=True, device="cpu", **options)


def lives(out: Path, *arguments, rng: random.Random | None) -> int:
    """Live until the training is finished, and return how many times it was killed."""
    kills = 0
    while True:
        moments = 10**9 if rng is None else rng.randrange(1, 60)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(out, *arguments, moments)
                code = 0
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return kills
        assert status == -signal.SIGKILL, f"a life ended with {status}"
        kills += 1
        assert kills < 200, "no life gets any further"


def main() -> None:
    """Train each method once without kills and once with many."""
    root, workers, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    extraction.NETWORK_BATCH = 16  # several moments within a refresh
    images = open_images("glyphs:val").select(range(40))
    recipe = load_recipe("glyphs", [*SETTINGS[1:], "epochs=1", "warmup_epochs=0"])
    old = train(images, recipe, root / "old", device="cpu")
    kills = {}
    for method in ("unibct", "unibct-plus"):
        lives(root / f"{method}-whole", workers, old, method, rng=None)
        rng = random.Random(seed)
        kills[method] = lives(root / f"{method}-killed", workers, old, method, rng=rng)
        assert load_model(root / f"{method}-killed").fingerprint
    print(json.dumps(kills))


if __name__ == "__main__":
    main()
