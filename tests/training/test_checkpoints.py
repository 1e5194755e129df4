import pytest
import torch

from tests.training.recipes import RECIPE, SMALL
from tests.training.run_results import metrics
from unibct.distributed.ranks import share_of
from unibct.errors import UserError
from unibct.training import run_folder, state
from unibct.training.run_folder import (
    Checkpoint,
    find_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from unibct.training.train import train


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
        own = share_of(classes, rank, world)
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
        own = share_of(10, rank, reads)
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
        assert [p.name for p in tmp_path.iterdir()] == [f"checkpoint-{place[0]:05}-{place[1]:08}"]
    (tmp_path / ".checkpoint-00001-00000002.tmp").mkdir()
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
            train(four_classes, SMALL, tmp_path / "m", device="cpu")
    train(four_classes, SMALL, tmp_path / "m", resume=True, device="cpu")
    assert len(metrics(tmp_path / "m")) == SMALL.epochs
