import sys

import pytest
import safetensors.torch
import torch

from tests.models.architectures import own_networks
from tests.models.architectures.other_libraries import require_stored
from unibct.errors import UserError
from unibct.models.architectures import NetworkRequest, build_network, find_architecture
from unibct.models.input import InputSpec
from unibct.models.model_folder import load_model

HERE = "python:tests.models.architectures.own_networks"


def test_a_class_is_built_for_the_input_and_the_dimension():
    architecture = find_architecture(f"{HERE}:Described")
    assert architecture.input == InputSpec(24, 16, 1, mean=0.4, fit="crop")
    assert (architecture.name, architecture.dim) == (f"{HERE}:Described", 6)
    network = build_network(architecture, InputSpec(10, 12, 1), 9)
    assert isinstance(network.head, torch.nn.Identity)
    assert network(torch.zeros(2, 1, 10, 12)).shape == (2, 9)


def test_a_function_s_map_is_averaged_and_projected():
    architecture = find_architecture(f"{HERE}:convolutions")
    assert architecture.input == InputSpec(20, 20, 3, (0.1, 0.2, 0.3), 0.25)
    assert architecture.dim == 5
    network = build_network(architecture, architecture.input, 7, seed=1).eval()
    x = torch.randn(2, 3, 20, 20)
    want = network.backbone(x).mean(dim=(2, 3)) @ network.head.weight.T + network.head.bias
    assert torch.allclose(network(x), want, atol=1e-6)
    again = build_network(architecture, architecture.input, 7, seed=1).eval()
    assert torch.equal(network(x), again(x))


def test_a_module_is_copied_and_its_tokens_are_averaged():
    architecture = find_architecture(f"{HERE}:whole")
    network = build_network(architecture, architecture.input, 4)
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(network(x), own_networks.whole(x).mean(dim=1), atol=1e-6)
    with torch.no_grad():
        network.backbone[1].weight.zero_()
    assert own_networks.whole[1].weight.any()
    first = find_architecture(f"{HERE}:whole", NetworkRequest(pooling="cls"))
    want = own_networks.whole(x)[:, 0]
    assert torch.allclose(build_network(first, first.input, 4)(x), want, atol=1e-6)


def test_a_function_that_returns_the_same_network_gives_copies():
    first, second = (build_network(f"{HERE}:shared", InputSpec(4, 4, 1), 4) for _ in range(2))
    assert torch.equal(first.backbone[1].weight, second.backbone[1].weight)
    assert first.backbone[1].weight is not second.backbone[1].weight


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_network_that_cannot_be_copied_is_taken_as_it_is():
    network = build_network(f"{HERE}:weight_normed", InputSpec(4, 4, 1), 4)
    assert network(torch.zeros(1, 1, 4, 4)).shape == (1, 4)


def test_the_folder_names_what_it_needs(tmp_path, monkeypatch):
    architecture = find_architecture(f"{HERE}:convolutions")
    spec = architecture.input
    network = build_network(architecture, spec, 7).eval()
    require_stored(network, architecture, spec, 7, tmp_path / "m")
    monkeypatch.setitem(sys.modules, "tests.models.architectures.own_networks", None)
    with pytest.raises(UserError, match=r"needs the Python module tests\.models.* PYTHONPATH"):
        load_model(tmp_path / "m")


def test_a_module_in_the_working_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_own_net.py").write_text(
        "from torch import nn\n"
        "net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))\n"
        "net.unibct_input = {'size': 4, 'channels': 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p])
    assert find_architecture("python:my_own_net:net").dim == 3
    assert str(tmp_path) not in sys.path


def test_weights_from_a_file(tmp_path):
    tensors = {"backbone.0.weight": torch.ones(5, 3, 3, 3), "backbone.0.bias": torch.ones(5)}
    norm = {"weight": 2.0, "bias": 3.0, "running_mean": 4.0, "running_var": 5.0}
    tensors |= {f"backbone.1.{name}": torch.full((5,), value) for name, value in norm.items()}
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    request = NetworkRequest(weights=str(tmp_path / "w.safetensors"))
    architecture = find_architecture(f"{HERE}:convolutions", request)
    network = build_network(architecture, architecture.input, 7)
    architecture.start(network)
    assert all(torch.equal(network.state_dict()[k], v) for k, v in tensors.items())


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere", "write python:MODULE:ATTRIBUTE"),
        ("unheard_of_module:net", "needs the Python module unheard_of_module"),
        (f"{HERE[7:]}:nothing", "has no attribute 'nothing'"),
        (f"{HERE[7:]}:undescribed", "give it an attribute unibct_input = "),
        ("os:abort", "give it an attribute unibct_input = "),
        (f"{HERE[7:]}:wrong", "returns int, not an nn.Module"),
        (f"{HERE[7:]}:demanding", "takes dim: say its usual one in unibct_dim"),
        (f"{HERE[7:]}:Oversized", "unibct_input: mean = .127.5. does not fit pixels from 0 to 1"),
        (f"{HERE[7:]}:Sizeless", "unibct_input = {'size': 'big'} makes no sense"),
        (f"{HERE[7:]}:Deep", r"cannot be built from its arguments none \(TypeError: .*depth"),
        (f"{HERE[7:]}:broken", r"cannot be built from .* \(RuntimeError: no weights on disk\)"),
        (f"{HERE[7:]}:Dimensionless", "unibct_dim must be a whole number, not 'big'"),
        (f"{HERE[7:]}:Misspelt", "must be a dictionary with channels, deviation, fit, mean, size"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(reference, message):
    with pytest.raises(UserError, match=message) as error:
        find_architecture(f"python:{reference}")
    assert "\n" not in str(error.value)


def test_images_that_the_network_cannot_take_are_named():
    with pytest.raises(UserError, match=r"cannot take images of 9x9 with 3 channels \(.*"):
        build_network(f"{HERE}:whole", InputSpec(9, 9, 3), 4)
