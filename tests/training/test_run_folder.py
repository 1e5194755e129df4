import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import torch

from tests.embeddings.embedding_checks import EmbeddingCounter
from tests.training.runs import (
    FINISHED,
    RECIPE,
    SMALL,
    metrics,
    names_in,
    stopped_before_epoch,
    train,
)
from unibct.data.readers import open_images
from unibct.distributed.ranks import ALONE, Ranks
from unibct.errors import UserError
from unibct.training import run_folder, state
from unibct.training.loop import TrainingLoop
from unibct.training.run_folder import (
    METRICS_FILE,
    Checkpoint,
    find_checkpoint,
    read_checkpoint,
    run_lock,
    save_checkpoint,
    write_metrics,
)

HOLD = """
import sys, time
from pathlib import Path
from unibct.distributed.ranks import ALONE
from unibct.training.run_folder import run_lock
with run_lock(Path(sys.argv[1]), ALONE):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_training_in_a_folder_is_refused_and_harms_nothing(
    four_classes, tmp_path, monkeypatch
):
    whole = train(four_classes, SMALL, tmp_path / "whole")
    refused, take_steps = [], TrainingLoop.take_steps

    def second():
        try:
            train(four_classes, SMALL, tmp_path / "m", resume=True)
        except UserError as error:
            refused.append(str(error))

    def interrupted(self, *arguments):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        take_steps(self, *arguments)

    monkeypatch.setattr(TrainingLoop, "take_steps", interrupted)
    model = train(four_classes, SMALL, tmp_path / "m")
    assert model.fingerprint == whole.fingerprint
    assert len(refused) == SMALL.epochs
    assert f"process {os.getpid()} on " in refused[0]
    assert "another training" in refused[0]
    assert "\n" not in refused[0]
    assert names_in(tmp_path / "m") == names_in(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_process_releases_the_folder(tmp_path):
    folder = tmp_path / "m"
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    refusal = pytest.raises(UserError, match=f"process {process.pid} on ")
    with refusal, run_lock(folder, ALONE):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with run_lock(folder, ALONE):
        assert folder.is_dir()
    assert not folder.exists()


def test_a_lock_leaves_the_folder_as_it_was(tmp_path):
    with run_lock(tmp_path / "new", ALONE):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with run_lock(tmp_path / "mine", ALONE):
        pass
    assert names_in(tmp_path / "mine") == ["thesis.txt"]


def test_a_foreign_folder_is_never_touched(split_images, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "metrics.csv").write_text("mine too")
    with pytest.raises(UserError, match="exists already"):
        train(split_images[0], RECIPE, tmp_path, resume=True)
    assert names_in(tmp_path) == ["metrics.csv", "notes.txt"]
    assert (tmp_path / "metrics.csv").read_text() == "mine too"


@pytest.mark.slow
def test_leftovers_of_a_killed_process_neither_block_nor_stay(split_images, old_model, tmp_path):
    out = tmp_path / "m"
    (out / ".old_embeddings").mkdir(parents=True)
    (out / ".checkpoint-00001-00000000.tmp").mkdir()
    (out / ".metrics.csv.abcd_fg2.tmp").write_text("half")
    options = {"old": old_model, "resume": True}
    first = train(split_images[1], RECIPE, out, **options)
    assert names_in(out) == FINISHED
    (out / "checkpoint-00003-00000000").mkdir()  # killed before it was removed
    (out / ".old_embeddings").mkdir()
    assert train(split_images[1], RECIPE, out, **options).fingerprint == first.fingerprint
    assert names_in(out) == FINISHED


@pytest.mark.slow
def test_a_read_error_in_the_first_epoch_keeps_the_old_embeddings(
    photo_folder, old_model, tmp_path, monkeypatch
):
    root, out = shutil.copytree(photo_folder, tmp_path / "photos"), tmp_path / "m"
    images = open_images(root)
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    options, take_steps = {"old": old_model, "method": "contrast"}, TrainingLoop.take_steps

    def unreadable(self, *arguments):
        path = root / images.ids[0]
        path.rename(root / "elsewhere")
        try:
            take_steps(self, *arguments)
        finally:
            (root / "elsewhere").rename(path)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "take_steps", unreadable)
        with pytest.raises(UserError, match="cannot be read"):
            train(images, RECIPE, out, **options)
    assert names_in(out) == [".old_embeddings"]
    counter = EmbeddingCounter(monkeypatch)
    with stopped_before_epoch(0):
        train(images, RECIPE, out, **options)
    assert counter.images == 0


@pytest.mark.parametrize("log", [None, "rank-00000.log", "slurm-123.out"])
def test_a_failed_run_removes_its_own_logs_only(log, four_classes, tmp_path):
    out = tmp_path / "m"
    if log is not None:
        (out / "logs").mkdir(parents=True)
        (out / "logs" / log).write_text("of an earlier run, or mine")
    with pytest.raises(UserError, match="diverged"):
        train(four_classes, RECIPE.updated(lr=1e30, batch_size=8), out)
    if log == "slurm-123.out":
        assert (out / "logs" / log).read_text() == "of an earlier run, or mine"
    else:
        assert not (out if log is None else out / "logs").exists()


def test_a_damaged_checkpoint_is_named(split_images, tmp_path):
    out = tmp_path / "m"
    (out / "checkpoint-00001-00000000").mkdir(parents=True)
    (out / "checkpoint-00001-00000000" / "state.safetensors").write_bytes(b"nonsense")
    damaged = rf"checkpoint-00001-00000000 is damaged .*; remove {out} and train again"
    with pytest.raises(UserError, match=damaged):
        train(split_images[0], RECIPE, out, resume=True)


def whole_checkpoint(folder, world, classes=10):
    """A checkpoint as ``world`` ranks write it."""
    rows = torch.arange(classes * 2.0).reshape(classes, 2)
    for rank in range(world):
        own = Ranks(rank, world).share(classes)
        temporary = folder / "checkpoint-00002-00000003"
        temporary.mkdir(parents=True, exist_ok=True)
        run_folder.save_tensors(
            temporary / f"classes-{own.start:010}-{own.stop:010}.safetensors",
            {"w": rows[own.start : own.stop]},
            {},
        )
    run_folder.save_tensors(temporary / "state.safetensors", {"a": rows}, {"state": '{"x": 1}'})
    return temporary, rows


@pytest.mark.parametrize("wrote", [1, 2, 3])
@pytest.mark.parametrize("reads", [1, 2, 4])
def test_other_ranks_read_the_rows_of_their_classes(wrote, reads, tmp_path):
    path, rows = whole_checkpoint(tmp_path, wrote)
    for rank in range(reads):
        own = Ranks(rank, reads).share(10)
        checkpoint = read_checkpoint(path, own)
        assert torch.equal(checkpoint.class_tensors["w"], rows[own.start : own.stop])
    assert torch.equal(read_checkpoint(path).class_tensors["w"], rows)
    assert checkpoint.state == {"x": 1}


def test_missing_rows_are_named(tmp_path):
    path, _ = whole_checkpoint(tmp_path, 3)
    (path / "classes-0000000003-0000000006.safetensors").unlink()
    for wanted in (range(10), range(3, 6), range(5, 10)):
        with pytest.raises(UserError, match=r"the rows of class \d are missing"):
            read_checkpoint(path, wanted)


def test_the_newest_whole_checkpoint_counts_and_the_others_go(tmp_path):
    assert find_checkpoint(tmp_path) is None
    for place in ((0, 9), (0, 10), (1, 0)):
        tensors = {"a": torch.zeros(1)}
        save_checkpoint(tmp_path, place, Checkpoint({}, tensors, tensors), classes=1)
        assert names_in(tmp_path) == [f"checkpoint-{place[0]:05}-{place[1]:08}"]
    (tmp_path / ".checkpoint-00001-00000002.tmp").mkdir()
    for name in ("checkpoint-00000-00000011", "checkpoint-00001-other"):  # killed while removing
        (tmp_path / name).mkdir()
    assert find_checkpoint(tmp_path).name == "checkpoint-00001-00000000"


def test_a_kill_after_the_last_checkpoint_loses_no_line_of_the_metrics(
    four_classes, tmp_path, monkeypatch
):
    written = state.write_metrics

    def killed_in_the_last_epoch(folder, rows):
        if len(rows) == SMALL.epochs:
            raise KeyboardInterrupt
        written(folder, rows)

    with monkeypatch.context() as patch:
        patch.setattr(state, "write_metrics", killed_in_the_last_epoch)
        with pytest.raises(KeyboardInterrupt):
            train(four_classes, SMALL, tmp_path / "m")
    train(four_classes, SMALL, tmp_path / "m", resume=True)
    assert len(metrics(tmp_path / "m")) == SMALL.epochs


def test_metrics_have_a_row_for_each_epoch(tmp_path):
    write_metrics(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    write_metrics(tmp_path, [{"epoch": epoch, "lr": 0.1, "loss_cls": 2.5} for epoch in range(2)])
    assert (tmp_path / METRICS_FILE).read_text() == "epoch,lr,loss_cls\n0,0.1,2.5\n1,0.1,2.5\n"
