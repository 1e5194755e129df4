import sys

import pytest
import safetensors.torch
import torch

from tests.models.architectures.other_libraries import require_stored
from unibct.errors import UserError
from unibct.models.architectures import (
    NetworkRequest,
    build_network,
    find_architecture,
    stored_architecture,
)
from unibct.models.architectures.resnet import load_backbone
from unibct.models.architectures.timm_networks import _mean
from unibct.models.input import InputSpec

pytestmark = pytest.mark.xdist_group("other libraries")  # slow imports
NAMES = {"test_efficientnet": (64, 64), "test_vit": (64, 64), "test_convnext": (48, 64)}


@pytest.mark.parametrize("name", NAMES)
def test_the_embedding_is_the_library_s_own_pooled_output(name, tmp_path):
    import timm

    architecture = find_architecture(f"timm:{name}")
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=0).eval()
    data = timm.data.resolve_model_data_config(theirs)
    _, height, width = data["input_size"]
    mean, std = tuple(data["mean"]), tuple(data["std"])
    assert architecture.input == InputSpec(height, width, 3, mean, std, "crop")
    assert architecture.dim == theirs.num_features
    network = build_network(architecture, architecture.input, architecture.dim).eval()
    network.backbone.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, height, width)
    with torch.no_grad():
        assert torch.allclose(network(x), theirs(x), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_folder_holds_all_that_it_needs(name, tmp_path):
    architecture = find_architecture(f"timm:{name}")
    spec = InputSpec(*NAMES[name], 1, fit="letterbox")
    network = build_network(architecture, spec, 12).eval()
    require_stored(network, architecture, spec, 12, tmp_path / "m")


def test_weights_from_a_file(tmp_path):
    name, spec = "timm:test_efficientnet", InputSpec(64, 64, 3)
    tensors = build_network(name, spec, 8, seed=5).backbone.state_dict()
    ones, deeper = torch.ones(3), tmp_path / "deeper.safetensors"
    safetensors.torch.save_file(tensors | {"classifier.bias": ones}, tmp_path / "w.safetensors")
    assert find_architecture(name).start is None
    request = NetworkRequest(weights=str(tmp_path / "w.safetensors"))
    architecture = find_architecture(name, request)
    network = build_network(architecture, spec, 8)
    architecture.start(network)
    assert all(torch.equal(network.backbone.state_dict()[k], v) for k, v in tensors.items())
    safetensors.torch.save_file(tensors | {"blocks.0.9.conv.weight": ones}, deeper)
    with pytest.raises(UserError, match=r"'blocks\.0\.9\.conv\.weight' .* of a larger network"):
        load_backbone(network, place=str(deeper))
    grey = build_network(architecture, InputSpec(64, 64, 1), 8)
    with pytest.raises(UserError, match=r"conv_stem.weight has the shape .* give the size and"):
        architecture.start(grey)


def test_pooling():
    x = torch.randn(2, 3, 64, 64)
    spec = InputSpec(64, 64, 3)
    networks = {}
    for pooling in ("cls", "mean"):
        architecture = find_architecture("timm:test_vit", NetworkRequest(pooling=pooling))
        networks[pooling] = build_network(architecture, spec, architecture.dim).eval()
    tokens = networks["mean"].backbone.forward_features(x)
    assert torch.allclose(networks["mean"](x), tokens[:, 1:].mean(dim=1), atol=1e-6)
    assert torch.allclose(networks["cls"](x), tokens[:, 0], atol=1e-6)
    convolutions = find_architecture("timm:test_efficientnet", NetworkRequest(pooling="cls"))
    with pytest.raises(UserError, match="has no such token"):
        build_network(convolutions, spec, 8)


def test_the_mean_over_a_map_with_the_features_last(monkeypatch):
    """Swin's map is (batch, height, width, features)."""
    import timm

    options = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 1), "window_size": 4}
    swin = timm.models.SwinTransformer(img_size=32, num_classes=0, **options).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features = swin.forward_features(x)
        assert features.shape == (2, 4, 4, 32)
        assert torch.allclose(_mean(swin, x), features.mean(dim=(1, 2)), atol=1e-6)
        assert torch.allclose(_mean(swin, x), swin(x), atol=1e-6)
        swin.num_features = 4  # as if it were as wide as high as deep
        square = torch.randn(2, 4, 4, 4)
        monkeypatch.setattr(swin, "forward_features", lambda x: square)
        assert torch.allclose(_mean(swin, x), square.mean(dim=(1, 2)))
        swin.output_fmt = "NCHW"
        assert torch.allclose(_mean(swin, x), square.mean(dim=(2, 3)))


def test_the_dimension_is_that_of_the_network_s_own_vector():
    name = "timm:mobilenetv3_small_050"  # has a layer between its pooling and its classifier
    dims = {p: find_architecture(name, NetworkRequest(pooling=p)).dim for p in ("auto", "mean")}
    assert dims == {"auto": 1024, "mean": 288}
    network = build_network(name, InputSpec(32, 32, 3), 1024)
    assert isinstance(network.head, torch.nn.Identity)


def test_what_is_missing_is_said_in_one_line(monkeypatch):
    for name, message in [
        ("resnet_unheard_of", r"timm has no network called 'resnet_unheard_of'.*such as"),
        ("hf-hub:nobody/nothing", "timm has no network called 'hf-hub:nobody/nothing'"),
        ("test_vit.nonsense", r"timm:test_vit\.nonsense cannot be built: .*nonsense"),
    ]:
        with pytest.raises(UserError, match=message):
            find_architecture(f"timm:{name}")
    architecture = find_architecture("timm:test_vit")
    with pytest.raises(UserError, match=r"timm:test_vit cannot .* images of 6x6"):
        build_network(architecture, InputSpec(6, 6, 3), 8)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'unibct\[timm\]'"):
        find_architecture("timm:test_vit")
    with pytest.raises(UserError, match=r"pip install 'unibct\[timm\]'"):
        stored = stored_architecture(architecture.name, architecture.config, architecture.input)
        build_network(stored, architecture.input, 8)
