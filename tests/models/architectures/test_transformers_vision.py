import json
import sys

import pytest
import safetensors.torch
import torch

from tests.models.architectures.other_libraries import (
    KINDS,
    require_stored,
    saved_network,
    tiny_config,
)
from unibct.errors import UserError
from unibct.models.architectures import (
    NetworkRequest,
    build_network,
    find_architecture,
    stored_architecture,
)
from unibct.models.input import InputSpec
from unibct.models.model import Model

pytestmark = pytest.mark.xdist_group("other libraries")  # slow imports


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each kind of network."""
    root = tmp_path_factory.mktemp("transformers")
    return {kind: saved_network(kind, root / kind) for kind in KINDS}


def started(architecture, spec=None, dim=16):
    network = build_network(architecture, spec or architecture.input, dim).eval()
    architecture.start(network)
    return network


@pytest.mark.parametrize("kind", KINDS)
def test_the_embedding_is_the_library_s_own_pooled_output(kind, folders):
    import transformers

    architecture = find_architecture(f"transformers:{folders[kind]}")
    assert (architecture.name, architecture.dim) == (f"transformers:{kind}", 16)
    network = started(architecture)
    size = 224 if kind == "resnet" else 32
    assert architecture.input == InputSpec(size, size, 3)
    x = torch.randn(2, 3, size, size)
    theirs = transformers.AutoModel.from_pretrained(folders[kind]).eval()
    with torch.no_grad():
        output = theirs(x)
        # ViT's pooling layer is trained for another task: the class token is taken instead.
        want = output.last_hidden_state[:, 0] if kind == "vit" else output.pooler_output
        assert torch.allclose(network(x), want.flatten(1), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(48, 32), (36, 50)])
def test_other_sizes_and_dimensions(kind, size, folders):
    architecture = find_architecture(f"transformers:{folders[kind]}")
    network = started(architecture, InputSpec(*size, 3), 7)
    assert network(torch.zeros(2, 3, *size)).shape == (2, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_folder_holds_all_that_it_needs(kind, folders, tmp_path):
    architecture = find_architecture(f"transformers:{folders[kind]}")
    spec = InputSpec(32, 32, 3, fit="crop")
    network = started(architecture, spec, 8)
    require_stored(network, architecture, spec, 8, tmp_path / "m")
    text = (tmp_path / "m" / "model.json").read_text()
    assert str(folders[kind]) not in text
    assert json.loads(text)["architecture_config"]["library"].startswith("transformers ")


def test_the_structure_is_part_of_the_fingerprint(folders):
    architecture = find_architecture(f"transformers:{folders['vit']}")
    network, spec = build_network(architecture, architecture.input, 8), architecture.input

    def fingerprint(config):
        return Model(network, architecture.name, spec, 8, architecture_config=config).fingerprint

    config = json.loads(json.dumps(architecture.config))
    assert fingerprint(config) == fingerprint(architecture.config)
    assert fingerprint(config | {"library": "transformers 9"}) == fingerprint(config)
    config["config"]["layer_norm_eps"] = 0.5
    assert fingerprint(config) != fingerprint(architecture.config)


def test_pooling(folders):
    name, x = f"transformers:{folders['dinov2']}", torch.randn(2, 3, 32, 32)
    network = started(find_architecture(name, NetworkRequest(pooling="mean")))
    hidden = network.backbone(x).last_hidden_state
    assert torch.allclose(network(x), hidden[:, 1:].mean(dim=1), atol=1e-6)
    request = NetworkRequest(pooling="cls")
    assert torch.allclose(started(find_architecture(name, request))(x), hidden[:, 0], atol=1e-6)
    for kind in ("resnet", "siglip_vision_model"):
        with pytest.raises(UserError, match="has no such token; use pooling=mean"):
            find_architecture(f"transformers:{folders[kind]}", request)


@pytest.mark.parametrize(
    ("kind", "prefix", "more"),
    [
        ("clip_vision_model", 1, {}),
        ("dinov2_with_registers", 5, {"num_register_tokens": 4}),
        ("deit", 2, {}),
        ("siglip_vision_model", 0, {}),
        ("aimv2_vision_model", 0, {"use_head": True}),  # the token of its head is none of these
    ],
)
def test_the_mean_is_over_the_patches(kind, prefix, more, tmp_path):
    import transformers

    transformers.AutoModel.from_config(tiny_config(kind, **more)).save_pretrained(tmp_path)
    request = NetworkRequest(pooling="mean")
    architecture = find_architecture(f"transformers:{tmp_path}", request)
    network = started(architecture)
    x = torch.randn(2, 3, 32, 32)
    hidden = network.backbone(x).last_hidden_state
    assert hidden.shape[1] == 16 + prefix
    assert torch.allclose(network(x), hidden[:, prefix:].mean(dim=1), atol=1e-6)
    assert architecture.config["prefix_tokens"] == prefix
    if prefix:
        first = find_architecture(f"transformers:{tmp_path}", NetworkRequest(pooling="cls"))
        assert torch.allclose(started(first)(x), hidden[:, 0], atol=1e-6)


def test_models_that_were_stored_before_embed_as_before(folders):
    name, request = f"transformers:{folders['dinov2']}", NetworkRequest(pooling="mean")
    architecture, x = find_architecture(name, request), torch.randn(2, 3, 32, 32)
    assert "prefix_tokens" not in find_architecture(name).config  # the same fingerprint as before
    siglip = find_architecture(f"transformers:{folders['siglip_vision_model']}")
    earlier = {k: v for k, v in architecture.config.items() if k != "prefix_tokens"}
    for found, config, pooled in [
        (architecture, earlier, lambda hidden: hidden.mean(dim=1)),
        (siglip, dict(siglip.config) | {"pooling": "cls"}, lambda hidden: hidden[:, 0]),
    ]:
        stored = stored_architecture(found.name, config, found.input)
        network = build_network(stored, found.input, 16).eval()
        hidden = network.backbone(x).last_hidden_state
        assert torch.allclose(network(x), pooled(hidden), atol=1e-6)


def test_a_masked_auto_encoder_hides_nothing(tmp_path):
    architecture = find_architecture(f"transformers:{saved_network('vit_mae', tmp_path)}")
    network, x = started(architecture), torch.randn(2, 3, 32, 32)
    assert torch.allclose(network(x), network(x), atol=1e-5)


def test_the_preprocessor_gives_size_mean_and_deviation(tmp_path):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    steps = {"image_mean": mean, "image_std": std, "size": {"shortest_edge": 40}}
    cases = [
        ({"do_center_crop": True, "crop_size": {"height": 32, "width": 24}}, (32, 24), "crop"),
        ({"do_center_crop": True, "crop_size": 32}, (32, 32), "crop"),
        ({}, (40, 40), "crop"),
        ({"size": {"height": 48, "width": 40}}, (48, 40), "stretch"),
        ({"size": 40}, (40, 40), "stretch"),
    ]
    for number, (more, size, fit) in enumerate(cases):
        folder = saved_network("vit", tmp_path / str(number), **steps | more)
        spec = find_architecture(f"transformers:{folder}").input
        assert spec == InputSpec(*size, 3, tuple(mean), tuple(std), fit)
    folder = saved_network("vit", tmp_path / "plain", do_normalize=False)
    assert find_architecture(f"transformers:{folder}").input == InputSpec(32, 32, 3, 0.0, 1.0)


def test_the_vision_part_of_a_model_for_images_and_text(tmp_path):
    import transformers

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = small | {"intermediate_size": 32, "vocab_size": 20}
    vision = tiny_config("clip_vision_model").to_dict()
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)
    both = transformers.CLIPModel(config).eval()
    both.save_pretrained(tmp_path / "clip")
    architecture = find_architecture(f"transformers:{tmp_path / 'clip'}")
    assert architecture.name == "transformers:clip_vision_model"
    x = torch.randn(2, 3, 32, 32)
    got = started(architecture)(x)
    with torch.no_grad():
        assert torch.allclose(got, both.vision_model(x).pooler_output, atol=1e-6)


def test_weights_from_a_file_or_random_or_of_another_network(folders, tmp_path):
    name, spec = f"transformers:{folders['dinov2']}", InputSpec(32, 32, 3)
    own = started(find_architecture(name), spec, 16).state_dict()
    assert find_architecture(name, NetworkRequest(weights="random")).start is None
    tensors = {f"dinov2.{k.removeprefix('backbone.')}": v + 1 for k, v in own.items()}
    safetensors.torch.save_file(tensors, tmp_path / "more.safetensors")
    torch.save({"state_dict": tensors}, tmp_path / "more.pt")
    for file in ("more.safetensors", "more.pt"):
        architecture = find_architecture(name, NetworkRequest(weights=str(tmp_path / file)))
        loaded = started(architecture, spec, 16).state_dict()
        assert all(torch.equal(loaded[k], v + 1) for k, v in own.items())
    for other in (str(folders["resnet"]), str(folders["resnet"] / "model.safetensors")):
        architecture = find_architecture(name, NetworkRequest(weights=other))
        with pytest.raises(UserError, match="weights of another network"):
            started(architecture, spec, 16)


def test_weights_of_a_deeper_network_are_refused(folders, tmp_path):
    import transformers

    config = tiny_config("dinov2")
    config.num_hidden_layers = 2
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    request = NetworkRequest(weights=str(tmp_path))
    architecture = find_architecture(f"transformers:{folders['dinov2']}", request)
    with pytest.raises(UserError, match=r"layer\.1\..* weights of a larger network"):
        started(architecture)


def test_grey_images_need_a_network_for_them(folders):
    architecture = find_architecture(f"transformers:{folders['vit']}")
    grey = InputSpec(32, 32, 1)
    assert build_network(architecture, grey, 8)(torch.zeros(2, 1, 32, 32)).shape == (2, 8)
    with pytest.raises(UserError, match=r"the weights in .* do not fit"):
        started(architecture, grey, 8)


def test_what_is_missing_is_said_in_one_line(folders, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"neither a folder .* download = true"):
        find_architecture("transformers:nobody/nothing")
    with pytest.raises(UserError, match=r"has no config.json"):
        find_architecture(f"transformers:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(UserError, match="cannot be opened: "):
        find_architecture(f"transformers:{tmp_path}")
    architecture = find_architecture(f"transformers:{folders['vit']}")
    with pytest.raises(UserError, match=r"cannot take images of 4x4 .* its patches of 8 pixels"):
        build_network(architecture, InputSpec(4, 4, 3), 8)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'unibct\[hf\]'"):
        find_architecture(f"transformers:{folders['vit']}")
    with pytest.raises(UserError, match=r"pip install 'unibct\[hf\]'"):
        stored = stored_architecture(architecture.name, architecture.config, architecture.input)
        build_network(stored, architecture.input, 8)
