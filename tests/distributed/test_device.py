import pytest
import torch

from unibct.distributed.device import local_rank, pick_device, pinned, to_device
from unibct.errors import UserError


def test_each_process_of_a_machine_has_its_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for name in ("auto", "cuda"):
        assert pick_device(name) == torch.device("cuda", 1)
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="no GPU for process 2 of this machine, which has 2"):
        pick_device()


def test_a_numbered_gpu_is_not_shared_by_the_processes_of_a_machine(monkeypatch):
    there = torch.empty(0, device="meta")
    monkeypatch.setattr(torch, "empty", lambda size, device: there)
    assert pick_device("cuda:1").type == "meta"  # one process takes any
    for rank, name in ((1, "cuda:0"), (0, "cuda:1"), (2, "cuda:0")):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
        with pytest.raises(UserError, match=f"{name} would put all .* one GPU; use --device cuda,"):
            pick_device(name)
        assert pick_device(f"cuda:{rank}").type == "meta"  # a script that gives each its own
    monkeypatch.delenv("LOCAL_WORLD_SIZE")  # some launchers say nothing else
    with pytest.raises(UserError, match="one GPU"):
        pick_device("cuda:0")


def test_a_device_that_is_not_there_is_named():
    assert pick_device("cpu") == torch.device("cpu")
    for name in ("tpu9", "hpu"):  # torch knows the second name, and lacks its module
        with pytest.raises(UserError, match=f"device '{name}' cannot be used: "):
            pick_device(name)
    with pytest.raises(UserError, match="'gpu' cannot be used: choose auto, cpu, cuda, cuda:1 "):
        pick_device("gpu")


def test_the_number_of_a_process_comes_from_its_launcher(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert local_rank() == 0
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_rank() == 3


def test_a_tensor_is_copied_without_waiting_or_stays_where_it_is():
    tensor, cpu = torch.arange(3), torch.device("cpu")
    assert to_device(tensor, cpu) is tensor
    assert pinned(tensor, cpu) is tensor
    moved = to_device(tensor, torch.device("meta"))
    assert moved.device.type == "meta"
    assert to_device(moved, torch.device("meta")) is moved
