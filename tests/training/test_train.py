import csv
import dataclasses
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tests.conftest import TINY
from unibct.data.loader import read_pixels
from unibct.data.readers.table import open_images
from unibct.data.scenarios import split
from unibct.embeddings import cache as embeddings
from unibct.errors import UserError
from unibct.methods.table import METHODS
from unibct.models.folder import load_model
from unibct.training import train, trainer
from unibct.training.plan import plan_run, upgrade_recipes
from unibct.training.recipe import load_recipe

RECIPE = load_recipe("glyphs", TINY)


@pytest.fixture(scope="module")
def sets(glyph_classes):
    chosen = split(glyph_classes.labels, "extended-data")
    return glyph_classes.select(chosen.old), glyph_classes.select(chosen.new)


@pytest.fixture(scope="module")
def old_model(sets, tmp_path_factory):
    return train.train(sets[0], RECIPE, tmp_path_factory.mktemp("old") / "m", device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method, sets, old_model, tmp_path):
    out = tmp_path / "new"
    model = train.train(sets[1], RECIPE, out, old=old_model, method=method, device="cpu")
    loaded = load_model(out)
    assert loaded.fingerprint == model.fingerprint
    assert loaded.training["method"] == method
    assert loaded.old_fingerprint == (None if method == "none" else old_model.fingerprint)
    assert sorted(p.name for p in out.iterdir()) == [
        "classifier.safetensors",
        "metrics.csv",
        "model.json",
        "model.safetensors",
    ]
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    waits = method != "unibct-plus"
    assert [float(row["eta"]) for row in rows] == [0 if waits else 1, 1, 1]
    assert (float(rows[0]["loss_comp"]) > 0) == (not waits)
    assert (float(rows[2]["loss_comp"]) > 0) == (method not in ("none", "mixbct"))


def test_same_seed_same_result_and_the_first_epochs_are_the_free_model_s(sets, old_model, tmp_path):
    def trained(name, recipe=RECIPE, **options):
        return train.train(sets[1], recipe, tmp_path / name, device="cpu", **options)

    first, again = trained("a", old=old_model), trained("b", old=old_model)
    assert first.fingerprint == again.fingerprint
    assert trained("c", RECIPE.updated(seed=5), old=old_model).fingerprint != first.fingerprint
    no_weight = trained("d", RECIPE.updated(eta=0.0, seed=5), old=old_model)
    assert no_weight.fingerprint == trained("e", RECIPE.updated(seed=5)).fingerprint


def test_training_learns(glyph_classes, tmp_path):
    recipe = RECIPE.updated(epochs=10, warmup_epochs=0, refresh_epochs=())
    model = train.train(glyph_classes, recipe, tmp_path / "m", device="cpu")
    rows = list(csv.DictReader((tmp_path / "m" / "metrics.csv").open()))
    assert float(rows[-1]["loss_cls"]) < 0.5 * float(rows[0]["loss_cls"])
    images = np.stack([glyph_classes.read(i) for i in glyph_classes.ids])
    logits = model.embed(images) @ torch.nn.functional.normalize(model.class_weights).numpy().T
    assert np.mean(logits.argmax(axis=1) == glyph_classes.labels) > 0.9


def test_old_embeddings_are_computed_once(sets, old_model, tmp_path, monkeypatch):
    calls = []
    real = embeddings.Model.embed_pixels

    def counted(self, pixels):
        calls.append(self.fingerprint == old_model.fingerprint)
        return real(self, pixels)

    monkeypatch.setattr(embeddings.Model, "embed_pixels", counted)
    train.train(sets[1], RECIPE, tmp_path / "m", old=old_model, method="contrast", device="cpu")
    assert sum(calls) == -(-len(sets[1]) // 256)


def test_a_stopped_run_resumes_to_the_bit(sets, old_model, tmp_path, monkeypatch):
    old, method = old_model, "unibct"
    recipe = RECIPE.updated(epochs=4)
    whole = train.train(sets[1], recipe, tmp_path / "whole", old=old, method=method, device="cpu")
    epoch = train.Trainer._epoch
    for stop_at in (0, 2):
        out = tmp_path / f"stopped at {stop_at}"

        def stopping(self, *arguments, stop_at=stop_at):
            if self.epoch == stop_at:
                raise KeyboardInterrupt
            return epoch(self, *arguments)

        monkeypatch.setattr(train.Trainer, "_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.train(sets[1], recipe, out, old=old, method=method, device="cpu")
        monkeypatch.setattr(train.Trainer, "_epoch", epoch)
        if stop_at > 0:
            with pytest.raises(UserError, match="training has not finished"):
                load_model(out)
            with pytest.raises(UserError, match="exists already"):
                train.train(sets[1], recipe, out, old=old, method=method, device="cpu")
            changed = recipe.updated(lr=0.01)
            with pytest.raises(UserError, match=r"another run: its recipe\.lr is"):
                train.train(sets[1], changed, out, old=old, method=method, resume=True)
        options = {"old": old, "method": method, "resume": True, "device": "cpu"}
        resumed = train.train(sets[1], recipe, out, **options)
        assert resumed.fingerprint == whole.fingerprint
        assert torch.equal(resumed.class_weights, whole.class_weights)
        assert train.train(sets[1], recipe, out, **options).fingerprint == whole.fingerprint
        losses = [
            [row["loss_cls"] for row in csv.DictReader((folder / "metrics.csv").open())]
            for folder in (out, tmp_path / "whole")
        ]
        assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_bit(photo_folder, tmp_path):
    def command(out):
        settings = ["epochs=6", "batch_size=16", "lr_warmup_epochs=0"]
        overrides = [part for setting in settings for part in ("--set", setting)]
        line = [sys.executable, "-m", "unibct", "train", str(photo_folder), "--device", "cpu"]
        return [*line, "--out", str(out), "--resume", *overrides]

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(command(killed), stderr=subprocess.PIPE)
    while process.poll() is None and not any(killed.glob("checkpoint-*")):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (killed / "model.json").exists(), "killed too late to test anything"
    for out in (killed, whole):
        subprocess.run(command(out), check=True, capture_output=True)
    assert load_model(killed).fingerprint == load_model(whole).fingerprint


def test_a_damaged_checkpoint_is_named(sets, tmp_path):
    out = tmp_path / "m"
    (out / "checkpoint-00001-00000000").mkdir(parents=True)
    (out / "checkpoint-00001-00000000" / "state.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"checkpoint-00001-00000000 is damaged"):
        train.train(sets[0], RECIPE, out, resume=True)


def test_what_cannot_work_is_refused_before_anything_is_written(sets, old_model, tmp_path):
    images = open_images("glyphs:val").select(range(200))
    for arguments, message in [
        ({"method": "unibct"}, "needs the old model"),
        ({"method": "magic"}, "unknown method"),
        ({"old": old_model, "recipe": RECIPE.updated(dim=64)}, "dimension is 64 but the old"),
        (
            {"old": old_model, "method": "unibct", "recipe": RECIPE.updated(warmup_epochs=3)},
            "leaves none of 3 epochs",
        ),
        ({"old": old_model, "method": "bct"}, "bct cannot be used here"),
        ({"recipe": RECIPE.updated(architecture="vgg")}, "unknown architecture"),
        ({"recipe": RECIPE.updated(lr=1e30)}, "diverged in epoch 0"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
    ]:
        recipe = arguments.pop("recipe", RECIPE)
        with pytest.raises(UserError, match=message):
            train.train(images, recipe, tmp_path / "m", **({"device": "cpu"} | arguments))
        assert list(tmp_path.iterdir()) == []


def test_a_free_model_may_have_its_own_dimension(sets, old_model):
    run = plan_run(sets[1], RECIPE.updated(dim=64), old=old_model, method="none")
    assert run.recipe.dim == 64
    assert run.old_fingerprint is None


def test_a_foreign_folder_is_never_touched(sets, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "metrics.csv").write_text("mine too")
    with pytest.raises(UserError, match="exists already"):
        train.train(sets[0], RECIPE, tmp_path, resume=True, device="cpu")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.csv", "notes.txt"]
    assert (tmp_path / "metrics.csv").read_text() == "mine too"


def test_changed_pixels_are_another_run(sets, old_model, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    options = {"old": old_model, "device": "cpu"}
    for stop_at in ("_epoch", "finished_model"):
        out = tmp_path / stop_at
        with monkeypatch.context() as patch:
            patch.setattr(train.Trainer, stop_at, stop)
            with pytest.raises(KeyboardInterrupt):
                train.train(sets[1], RECIPE, out, **options)
        upside_down = dataclasses.replace(sets[1], read=lambda i: sets[1].read(i)[::-1])
        if stop_at == "_epoch":  # nothing but the cache was written: it must not be used
            again = train.train(upside_down, RECIPE, out, resume=True, **options)
            fresh = train.train(upside_down, RECIPE, tmp_path / "fresh", **options)
            assert again.fingerprint == fresh.fingerprint
        else:
            with pytest.raises(UserError, match="another run: its pixels is"):
                train.train(upside_down, RECIPE, out, resume=True, **options)


def test_the_folder_s_name_does_not_matter_on_resuming(photo_folder, tmp_path):
    images = open_images(photo_folder)
    first = train.train(images, RECIPE, str(tmp_path / "m"), device="cpu")
    renamed = dataclasses.replace(images, name=f"{photo_folder}/")
    again = train.train(renamed, RECIPE, tmp_path / "m", resume=True, device="cpu")
    assert again.fingerprint == first.fingerprint


def test_without_momentum(sets, tmp_path):
    model = train.train(sets[0], RECIPE.updated(momentum=0.0), tmp_path / "m", device="cpu")
    assert load_model(tmp_path / "m").fingerprint == model.fingerprint


def test_bct_needs_no_old_embeddings(sets, old_model, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "cached_embeddings", None)
    train.train(sets[1], RECIPE, tmp_path / "m", old=old_model, method="bct", device="cpu")
    with pytest.raises(TypeError):
        train.train(sets[1], RECIPE, tmp_path / "n", old=old_model, method="regress", device="cpu")


def test_leftovers_of_a_killed_process_neither_block_nor_stay(sets, old_model, tmp_path):
    out = tmp_path / "m"
    (out / ".old_embeddings").mkdir(parents=True)
    (out / ".checkpoint-00001-00000000.tmp").mkdir()
    (out / ".metrics.csv.y2.tmp").write_text("half")
    options = {"old": old_model, "resume": True, "device": "cpu"}
    first = train.train(sets[1], RECIPE, out, **options)
    finished = ["classifier.safetensors", "metrics.csv", "model.json", "model.safetensors"]
    assert sorted(p.name for p in out.iterdir()) == finished
    (out / "checkpoint-00003-00000000").mkdir()  # killed before it was removed
    (out / ".old_embeddings").mkdir()
    assert train.train(sets[1], RECIPE, out, **options).fingerprint == first.fingerprint
    assert sorted(p.name for p in out.iterdir()) == finished


def test_a_damaged_cache_is_made_again(sets, old_model, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    out, options = tmp_path / "m", {"old": old_model, "device": "cpu"}
    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            train.train(sets[1], RECIPE, out, **options)
    vectors = out / ".old_embeddings" / "plain" / "vectors-000000.npy"
    vectors.write_bytes(vectors.read_bytes()[:-4] + b"ruin")
    again = train.train(sets[1], RECIPE, out, resume=True, **options)
    fresh = train.train(sets[1], RECIPE, tmp_path / "n", **options)
    assert again.fingerprint == fresh.fingerprint


def test_a_last_step_that_ruins_the_model_is_noticed(glyph_classes, tmp_path):
    one_step = RECIPE.updated(epochs=1, batch_size=512, lr=1e30, warmup_epochs=0)
    with pytest.raises(UserError, match="diverged in epoch 0"):
        train.train(glyph_classes, one_step, tmp_path / "m", device="cpu")
    assert not (tmp_path / "m").exists()


SMALL = RECIPE.updated(epochs=2, batch_size=8, refresh_epochs=())


@pytest.fixture(scope="module")
def few(sets):
    """Six images of each of four classes."""
    rows = [np.flatnonzero(sets[1].labels == c)[:6] for c in range(4)]
    return sets[1].select(np.concatenate(rows))


@pytest.fixture(scope="module")
def few_old(few, tmp_path_factory):
    return train.train(few, SMALL, tmp_path_factory.mktemp("few") / "m", device="cpu")


def metrics(folder):
    return list(csv.DictReader((folder / "metrics.csv").open()))


def test_runs_that_share_a_cache_share_the_warm_up_and_the_old_embeddings(
    few, few_old, tmp_path, monkeypatch
):
    def trained(name, method, **options):
        options |= {"old": few_old, "device": "cpu", "method": method}
        return train.train(few, SMALL, tmp_path / name, **options)

    alone = {method: trained(f"{method} alone", method) for method in ("contrast", "mixbct")}
    cache = tmp_path / "cache"
    first = trained("first", "contrast", cache=cache)
    assert first.fingerprint == alone["contrast"].fingerprint
    epochs, epoch = [], train.Trainer._epoch

    def watched(self, *arguments):
        epochs.append(self.epoch)
        return epoch(self, *arguments)

    monkeypatch.setattr(train.Trainer, "_epoch", watched)
    monkeypatch.setattr(embeddings, "embed_pixel_batches", None)
    second = trained("second", "mixbct", cache=cache)
    assert epochs == [1]
    assert second.fingerprint == alone["mixbct"].fingerprint
    assert torch.equal(second.class_weights, alone["mixbct"].class_weights)
    rows = metrics(tmp_path / "second")
    assert rows[0] == metrics(tmp_path / "first")[0]
    kept = [[row["loss_cls"] for row in metrics(tmp_path / n)] for n in ("second", "mixbct alone")]
    assert kept[0] == kept[1]
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("first", "second"), [("bct", "unibct-centroid"), ("nccl", "advbct"), ("advbct", "bct")]
)
def test_a_method_takes_nothing_but_the_warm_up_of_another(first, second, few, few_old, tmp_path):
    options = {"old": few_old, "device": "cpu"}
    alone = train.train(few, SMALL, tmp_path / "alone", method=second, **options)
    options["cache"] = tmp_path / "cache"
    train.train(few, SMALL, tmp_path / "first", method=first, **options)
    shared = train.train(few, SMALL, tmp_path / "second", method=second, **options)
    assert shared.fingerprint == alone.fingerprint


def test_the_old_model_may_be_another_after_the_same_warm_up(few, few_old, tmp_path):
    recipe = SMALL.updated(seed=7)
    other = train.train(few, recipe.updated(seed=8), tmp_path / "other", device="cpu")
    options = {"method": "bct", "device": "cpu"}
    alone = train.train(few, recipe, tmp_path / "alone", old=other, **options)
    options["cache"] = tmp_path / "cache"
    train.train(few, recipe, tmp_path / "first", old=few_old, **options)
    shared = train.train(few, recipe, tmp_path / "second", old=other, **options)
    assert shared.fingerprint == alone.fingerprint


def test_two_runs_may_fill_the_same_cache_at_once(few, few_old, tmp_path, monkeypatch):
    pixels = read_pixels(few, *few_old.input.size)
    embedded, embed = [], embeddings.Model.embed_pixels

    def counted(self, batch):
        embedded.append(len(batch))
        return embed(self, batch)

    monkeypatch.setattr(embeddings.Model, "embed_pixels", counted)

    def found(_):
        return np.asarray(
            embeddings.cached_embeddings(few_old, pixels, tmp_path / "cache" / "e").vectors
        )

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(found, range(3)))
    assert embedded == [len(few)]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_a_run_that_is_all_warm_up_keeps_its_metrics(few, tmp_path):
    recipe, options = SMALL.updated(warmup_epochs=2), {"cache": tmp_path / "cache", "device": "cpu"}
    first, again = (train.train(few, recipe, tmp_path / name, **options) for name in "ab")
    assert again.fingerprint == first.fingerprint
    assert metrics(tmp_path / "b") == metrics(tmp_path / "a")


def test_unibct_plus_works_from_the_first_epoch_on(few, few_old, tmp_path):
    options = {"method": "unibct-plus", "old": few_old, "device": "cpu"}
    recipe = SMALL.updated(warmup_epochs=2)  # no error: it has no warm-up
    train.train(few, recipe, tmp_path / "m", cache=tmp_path / "cache", **options)
    rows = metrics(tmp_path / "m")
    assert [float(row["eta"]) for row in rows] == [1, 1]
    assert all(float(row["loss_comp"]) > 0 for row in rows)
    assert [p.name for p in (tmp_path / "cache").glob("warmup-*")] == []


@pytest.mark.parametrize("method", ["advbct", "nccl", "mixbct"])
def test_a_stopped_run_goes_on_with_what_its_method_has_learnt(
    method, few, few_old, tmp_path, monkeypatch
):
    recipe = SMALL.updated(epochs=3)
    options = {"old": few_old, "method": method, "device": "cpu"}
    whole = train.train(few, recipe, tmp_path / "whole", **options)
    epoch = train.Trainer._epoch

    def stopping(self, *arguments):
        if self.epoch == 2:
            raise KeyboardInterrupt
        return epoch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.train(few, recipe, tmp_path / "stopped", **options)
    resumed = train.train(few, recipe, tmp_path / "stopped", resume=True, **options)
    assert resumed.fingerprint == whole.fingerprint
    assert torch.equal(resumed.class_weights, whole.class_weights)
    kept = [
        [(row["loss_cls"], row["loss_comp"]) for row in metrics(tmp_path / name)]
        for name in ("stopped", "whole")
    ]
    assert kept[0] == kept[1]


def test_a_warm_start_begins_from_the_old_weights(sets, few, few_old, tmp_path):
    # Classes 2 to 5: the old model knows two of them, at other rows.
    others = sets[1].select([i for c in (2, 3, 4, 5) for i in np.flatnonzero(sets[1].labels == c)])
    recipe = SMALL.updated(warm_start=True, epochs=1, lr=1e-9)
    options = {"old": few_old, "method": "none", "device": "cpu"}
    warm = train.train(others, recipe, tmp_path / "warm", **options)
    cold = train.train(others, recipe.updated(warm_start=False), tmp_path / "cold", **options)
    weights = {
        name: torch.cat([p.flatten() for p in model.network.parameters()])
        for name, model in (("old", few_old), ("warm", warm), ("cold", cold))
    }
    assert torch.allclose(weights["warm"], weights["old"], atol=1e-6)
    assert not torch.allclose(weights["cold"], weights["old"], atol=1e-2)
    assert warm.class_names[:2] == few_old.class_names[2:]
    assert torch.allclose(warm.class_weights[:2], few_old.class_weights[2:], atol=1e-6)
    assert torch.allclose(warm.class_weights[2:], cold.class_weights[2:], atol=1e-6)
    assert not torch.allclose(warm.class_weights[:2], cold.class_weights[:2], atol=1e-2)
    assert warm.old_fingerprint == few_old.fingerprint
    assert cold.old_fingerprint is None


def test_a_warm_start_that_cannot_work_is_refused(few, few_old, tmp_path):
    recipe = SMALL.updated(warm_start=True)
    wide = recipe.updated(architecture="resnet-small-wide")
    for changed, old, message in [
        (recipe, None, "old model's weights: give --old MODEL"),
        (wide, few_old, "the old model is a resnet-small and the new one a resnet-small-wide"),
    ]:
        with pytest.raises(UserError, match=message):
            train.train(few, changed, tmp_path / "m", old=old, device="cpu")
        assert list(tmp_path.iterdir()) == []


def test_a_warm_start_in_another_dimension_is_refused(few, few_old, tmp_path):
    recipe = SMALL.updated(warm_start=True, dim=64)
    with pytest.raises(UserError, match="dim"):
        train.train(few, recipe, tmp_path / "m", old=few_old, method="none", device="cpu")


def test_when_a_method_is_at_work_and_refreshed(few, few_old):
    recipe = SMALL.updated(epochs=9, warmup_epochs=3, refresh_epochs=(1, 3, 6))
    for method, begin, refreshes in [("unibct", 3, [3, 6]), ("unibct-plus", 0, [0, 1, 3, 6])]:
        run = plan_run(few, recipe, old=few_old, method=method)
        assert run.begin == begin
        assert [epoch for epoch in range(9) if run.refreshes_at(epoch)] == refreshes


def test_a_warm_up_is_shared_by_runs_that_differ_later_only(few, few_old):
    def digest(pixels="p", method="unibct", **changes):
        return plan_run(
            few, SMALL.updated(seed=3, **changes), old=few_old, method=method
        ).warmup_digest(pixels)

    later = {"eta": 5.0, "tau": 0.5, "lam": 0.1, "drop": 0.3, "refresh_epochs": (2,)}
    assert digest() == digest(method="none") == digest(method="advbct", **later)
    others = [
        digest(**changes)
        for changes in (
            {"pixels": "q"},
            {"lr": 0.2},
            {"epochs": 4},
            {"momentum": 0.5},
            {"margin": 0.1},
            {"architecture": "resnet-small-wide"},
        )
    ]
    assert len({digest(), *others}) == 7
    assert digest(method="unibct-plus") is None
    assert digest(warmup_epochs=0) is None
    assert digest(warm_start=True) is None


def test_the_two_recipes_of_an_upgrade():
    for scenario in ("extended-data", "open-class"):
        for seed in (0, 3):
            old, new = upgrade_recipes(RECIPE, scenario, seed)
            assert (old, new) == (RECIPE.updated(seed=2 * seed), RECIPE.updated(seed=2 * seed + 1))
    old, new = upgrade_recipes(RECIPE.updated(architecture="resnet18"), "identical-data", 1)
    assert (old.architecture, old.dim, old.seed) == ("resnet18", None, 2)
    assert (new.architecture, new.dim, new.seed) == ("resnet50", 512, 3)
    with pytest.raises(UserError, match="identical-data needs a larger network than resnet50"):
        upgrade_recipes(RECIPE.updated(architecture="resnet50"), "identical-data", 0)
