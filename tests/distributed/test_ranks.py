"""Several processes give what one gives."""

import csv
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.distributed.ranks_worker import RUNS, look, moved_run
from tests.training.run_results import require_same
from unibct.data import loader
from unibct.data.readers.table import open_images
from unibct.distributed.class_shards import ClassPart, sampled_classes, step_rows
from unibct.distributed.device import pick_device
from unibct.distributed.ranks import ALONE, Ranks
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.store import open_embeddings
from unibct.errors import UserError
from unibct.losses.arcface import arcface
from unibct.losses.sharded_arcface import sharded_arcface
from unibct.models.model import load_model
from unibct.training.checkpoints import find_checkpoint, read_checkpoint
from unibct.training.train import train

RNG = np.random.default_rng


def torchrun(processes, *command, check=True):
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += [f"--nproc-per-node={processes}", "-m", *map(str, command)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=check)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What one, two and three processes find."""
    folders = {n: tmp_path_factory.mktemp(f"{n} ranks") for n in (1, 2, 3)}
    for processes, folder in folders.items():
        found = torchrun(processes, "tests.distributed.ranks_worker", folder, check=False)
        assert found.returncode == 0, found.stderr
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["all", "sample"])
def test_losses_and_gradients_are_those_of_one_process(runs, world, name):
    one = look(name == "sample")
    many = [safetensors.torch.load_file(runs[world] / f"{name}-{r}") for r in range(world)]
    assert torch.allclose(torch.cat([found["shard"] for found in many]), one["shard"], atol=1e-5)
    for key, expected in one.items():
        for found in many:
            if key != "shard":
                assert torch.allclose(found[key], expected, rtol=1e-5, atol=1e-4), key


def losses_of(folder):
    with (folder / "metrics.csv").open() as file:
        return [[float(r[k]) for k in ("loss_cls", "loss_comp")] for r in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RUNS if n not in ("unibct,own", "unibct,half")])
def test_training_in_several_processes_is_training_in_one(runs, name):
    one, two, three = (np.array(losses_of(runs[n] / name)) for n in (1, 2, 3))
    # torch's own normalisation rounds otherwise than ours, which shows in images with flat ground.
    assert np.allclose(two, one, rtol=5e-3)
    assert np.allclose(three, two, rtol=1e-3)
    models = [load_model(runs[n] / name) for n in (2, 3)]
    images = open_images("glyphs:val").select(range(0, 160, 9))
    pixels = np.stack([images.read(i) for i in images.ids])
    cosines = (models[0].embed(pixels) * models[1].embed(pixels)).sum(axis=1)
    assert cosines.min() > 0.99
    assert models[0].class_weights.shape == models[1].class_weights.shape


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unibct,own", "unibct,half"])
def test_kinds_of_normalisation_and_precision(runs, name):
    found = np.array(losses_of(runs[2] / name))
    assert found[-1, 0] < found[0, 0]
    plain = np.array(losses_of(runs[2] / "unibct"))
    assert not np.allclose(found, plain, rtol=1e-6)
    assert np.allclose(found, plain, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
def test_stopped_together_they_go_on_to_the_bit(runs, world):
    require_same(runs[world] / "part", runs[world] / "whole")
    rows = sorted(p.name for p in find_checkpoint(runs[world] / "whole").glob("classes-*"))
    assert len(rows) == world


@pytest.mark.slow
def test_one_process_speaks_each_keeps_a_log_and_errors_are_said_once(photo_folder, tmp_path):
    def train(processes, out, epochs, *options):
        settings = ["batch_size=12", "lr_warmup_epochs=0", "schedule=milestones", "sample_rate=0.8"]
        line = ["unibct", "train", photo_folder, "--out", tmp_path / out, "--device", "cpu"]
        for setting in (*settings, f"epochs={epochs}"):
            line += ["--set", setting]
        return torchrun(processes, *line, "--checkpoint-every", 1, *options, check=False)

    whole = train(2, "whole", 4)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("fingerprint") == 1
    assert whole.stderr.count("training: ") == 1
    assert sorted(p.name for p in (tmp_path / "whole" / "logs").iterdir()) == [
        "rank-00000.log",
        "rank-00001.log",
    ]
    assert "training: " in (tmp_path / "whole" / "logs" / "rank-00001.log").read_text()
    wrong = train(5, "wrong", 4)
    assert wrong.returncode != 0
    assert "batch_size = 12 cannot be divided evenly by 5 processes" in wrong.stderr
    assert wrong.stderr.count("error: ") == 1


@pytest.mark.slow
def test_processes_that_are_not_started_alike_are_refused(photo_folder, tmp_path):
    code = (
        "import os, sys\n"
        "from unibct.cli.entry import main\n"
        f"line = ['train', {str(photo_folder)!r}, '--out', {str(tmp_path / 'm')!r}]\n"
        "line += ['--device', 'cpu', '--set', 'batch_size=12']\n"
        "main(line + ['--checkpoint-every', '1'] * (os.environ['RANK'] == '1'))\n"
    )
    (tmp_path / "odd.py").write_text(code)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    line.append(str(tmp_path / "odd.py"))
    found = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode != 0
    assert "error: the processes were not started alike" in found.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_a_run_killed_in_its_first_refresh_goes_on(photo_folder, tmp_path):
    def train(out, *more):
        line = ["unibct", "train", photo_folder, "--out", tmp_path / out, "--device", "cpu"]
        for setting in ("batch_size=12", "lr_warmup_epochs=0", "warmup_epochs=0", "epochs=1"):
            line += ["--set", setting]
        return torchrun(2, *line, *more, check=False)

    assert train("old").returncode == 0
    method = ("--old", tmp_path / "old", "--method", "unibct")
    (tmp_path / "new" / ".new_embeddings").mkdir(parents=True)
    (tmp_path / "new" / ".new_embeddings" / ".plain.lock").touch()
    found = train("new", *method, "--resume")
    assert found.returncode == 0, found.stderr
    assert [p.name for p in (tmp_path / "new").iterdir() if p.name[0] == "."] == []


@pytest.mark.slow
def test_what_two_processes_began_one_finishes(runs, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(runs[2] / "moved", folder)
    assert read_checkpoint(find_checkpoint(folder)).state["step"] == 1
    images, recipe = moved_run()
    old = load_model(runs[2] / "old")
    train(images, recipe, folder, old=old, method="unibct", resume=True, device="cpu")
    assert np.allclose(losses_of(folder), losses_of(runs[2] / "unibct"), rtol=5e-3)


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_goes_on_in_three(runs):
    path = find_checkpoint(runs[2] / "whole")
    whole = read_checkpoint(path)
    classes = len(whole.class_tensors["class_weights"])
    parts = [read_checkpoint(path, Ranks(r, 3).share(classes)) for r in range(3)]
    for name, tensor in whole.class_tensors.items():
        assert torch.equal(torch.cat([p.class_tensors[name] for p in parts]), tensor)


@pytest.mark.slow
def test_extraction_is_divided_and_lands_in_one_store(runs, photo_folder, tmp_path):
    images = open_images("glyphs:val").select(range(160))
    for world in (2, 3):
        found = open_embeddings(runs[world] / "store", verify=True)
        assert len(list((runs[world] / "store").glob("vectors-*"))) == 10
        expected = embed_images(load_model(runs[world] / "none"), images)
        assert found.ids == images.ids
        assert np.array_equal(found.labels, images.labels)
        assert np.allclose(np.asarray(found.vectors), expected.vectors, atol=1e-6)
    line = ["unibct", "embed", runs[1] / "none", photo_folder, "--out", tmp_path / "e"]
    shown = torchrun(2, *line)
    assert shown.stdout.count("embeddings of dimension") == 1
    assert len(open_embeddings(tmp_path / "e")) == len(open_images(photo_folder))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.99])
def test_a_sample_holds_the_batch_s_classes_and_random_others(rate):
    labels, own = np.array([3, 3, 15, 40, 7]), range(5, 35)
    found = [sampled_classes(labels, own, rate, RNG(seed)) for seed in range(300)]
    for rows in found:
        assert list(rows) == sorted(set(rows.tolist()))
        assert len(rows) == max(round(rate * 30), 2)
        assert {2, 10} <= set(rows.tolist())
        assert 0 <= rows.min() <= rows.max() < 30
    counts = np.bincount(np.concatenate(found), minlength=30) / 300
    others = np.delete(counts, [2, 10])
    expected = (round(rate * 30) - 2) / 28
    assert abs(others.mean() - expected) < 1e-9
    assert np.abs(others - expected).max() < 0.15
    assert np.array_equal(sampled_classes(labels, own, rate, RNG(0)), found[0])


def test_a_sample_of_few_is_the_batch_s_classes():
    assert sampled_classes(np.arange(8), range(10), 0.1, RNG(0)).tolist() == list(range(8))
    assert len(sampled_classes(np.array([99]), range(10), 0.01, RNG(0))) == 1
    with pytest.raises(UserError, match="sample_rate must lie in"):
        sampled_classes(np.arange(3), range(10), 0.0, RNG(0))


def test_arcface_on_a_sample_by_hand():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(6, 4, generator=generator, requires_grad=True)
    weights = torch.randn(9, 4, generator=generator, requires_grad=True)
    labels, rows = torch.tensor([0, 4, 4, 7, 8, 0]), torch.tensor([0, 2, 4, 7, 8])
    part = ClassPart(9, ALONE, rows)
    found = sharded_arcface(embeddings, part.rows(weights), labels, part)
    places = torch.tensor([0, 2, 2, 3, 4, 0])
    expected = arcface(embeddings, weights[rows], places)
    assert torch.allclose(found, expected)
    ours = torch.autograd.grad(found, (embeddings, weights), retain_graph=True)
    theirs = torch.autograd.grad(expected, (embeddings, weights))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert (ours[1][[1, 3, 5, 6]] == 0).all()


def test_a_step_on_all_rows_is_torch_s():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(7, 3, generator=generator)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.01)
    momentum = torch.zeros_like(weights)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    for _ in range(4):
        gradient = torch.randn(7, 3, generator=generator)
        parameter.grad = gradient
        optimizer.step()
        step_rows(weights, momentum, torch.arange(7), gradient, **options)
    assert torch.allclose(weights, parameter.detach(), atol=1e-6)
    before, kept = weights.clone(), momentum.clone()
    step_rows(weights, momentum, torch.tensor([1, 5]), gradient[:2], **options)
    assert torch.equal(weights[[0, 2, 3, 4, 6]], before[[0, 2, 3, 4, 6]])
    assert torch.equal(momentum[[0, 2, 3, 4, 6]], kept[[0, 2, 3, 4, 6]])
    assert not torch.equal(weights[[1, 5]], before[[1, 5]])


def test_each_process_of_a_machine_has_its_gpu_and_its_cores(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for name in ("auto", "cuda"):
        assert pick_device(name) == torch.device("cuda", 1)
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="no GPU for process 2 of this machine, which has 2"):
        pick_device()
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as torchrun sets it
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert loader._threads() == 8
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert loader._threads() == 2


def test_shares_are_whole_and_even():
    for total in (0, 1, 7, 93_431):
        for world in (1, 2, 3, 8):
            parts = [Ranks(rank, world).share(total) for rank in range(world)]
            assert [i for part in parts for i in part] == list(range(total))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_world_without_a_launcher_is_explained(monkeypatch):
    from unibct.distributed.ranks import current_ranks

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="start with `torchrun"):
        current_ranks()
