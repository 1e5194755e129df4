import pytest
import torch
from torch import nn

from tests.methods.cases import SETTINGS, knowledge
from unibct.distributed.device import (
    callers_generators_kept,
    local_rank,
    pick_device,
    pinned,
    to_device,
)
from unibct.errors import UserError
from unibct.maps.vector_map import fit_vector_map
from unibct.methods.advbct import AdvBct
from unibct.models.architectures import build_network, find_architecture
from unibct.models.input import InputSpec
from unibct.models.old_space import add_projection
from unibct.training.network import seed_step


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
        with pytest.raises(UserError, match=f"{name} would put all .* one GPU; use device cuda,"):
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


# Whatever we draw, the caller's own numbers go on as if we had not been there.


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs' generators of a process that uses CUDA, and what `torch.manual_seed` does there."""
    gpus = [torch.Generator(), torch.Generator()]

    def seed_all(seed):
        for gpu in gpus:
            gpu.manual_seed(seed)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", tuple(gpus))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seed_all)
    return gpus


class OnGpus(nn.Linear):
    """A network of a user whose first weights are drawn on the second GPU."""

    unibct_input = {"size": 4}  # noqa: RUF012

    def __init__(self, dim=3):
        super().__init__(48, dim)
        self.drawn = torch.rand(2, generator=torch.cuda.default_generators[1])

    def forward(self, images):
        return super().forward(images.flatten(1))


def with_a_step():
    with callers_generators_kept():
        seed_step(0, 1, 2, 0)
        torch.rand(3)


def with_a_map():
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).numpy()
    fit_vector_map("mlp", new=rows, old=rows[:, ::-1].copy(), labels=[0, 1] * 4)


PYTHON = f"python:{__name__}:OnGpus"
DRAWING = {
    "build": lambda: build_network("resnet-small", InputSpec(16, 16, 1), 8),
    "dim": lambda: find_architecture(PYTHON),
    "projection": lambda: add_projection(nn.Sequential(), 8, 6),
    "advbct": lambda: AdvBct(knowledge(), SETTINGS),
    "map": with_a_map,
    "step": with_a_step,
}


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.usefixtures("short_maps")
def test_the_caller_s_generators_stay_as_they_were(two_gpus, name):
    generators = [torch.default_generator, *two_gpus]
    for number, generator in enumerate(generators):
        generator.manual_seed(number)
    before = [generator.get_state() for generator in generators]
    DRAWING[name]()
    for generator, state in zip(generators, before, strict=True):
        assert torch.equal(generator.get_state(), state)


def test_a_network_that_draws_on_a_gpu_depends_on_its_seed_only(two_gpus):
    drawn = []
    for seed in (1, 1, 2):
        torch.rand(2, generator=two_gpus[1])
        network = build_network(find_architecture(PYTHON), InputSpec(4, 4, 3), 3, seed=seed)
        drawn.append(next(m.drawn for m in network.modules() if isinstance(m, OnGpus)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_without_cuda_no_gpu_is_asked_for_anything(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a GPU is seeded"))
    build_network("resnet-small", InputSpec(16, 16, 1), 8)
