import numpy as np
import pytest
import torch
from torch import nn

from unibct.data.decoding import VECTORS
from unibct.errors import UserError
from unibct.models.architectures import ARCHITECTURES, build_network
from unibct.models.architectures.resnet import (
    BasicBlock,
    IResNet,
    ResNet,
    embedding_network,
    feature_count,
    load_backbone,
    pooled,
    shortcut,
)
from unibct.models.input import InputSpec
from unibct.models.model import Model
from unibct.models.model_folder import load_model, save_model

SPEC = InputSpec(6, 4, 1)


def call(network, x):
    return pooled(network(x))


def test_pooling_takes_the_mean_over_positions():
    maps = torch.randn(2, 3, 4, 5)
    assert torch.allclose(pooled(maps), maps.flatten(2).mean(dim=2))
    tokens = torch.randn(2, 7, 3)
    assert torch.allclose(pooled(tokens), tokens.mean(dim=1))
    vectors = torch.randn(2, 3)
    assert torch.equal(pooled(vectors), vectors)


def test_the_head_is_left_out_where_the_dimension_fits():
    backbone = nn.Conv2d(1, 5, 3)
    same = embedding_network("mine", backbone, call, SPEC, 5)
    assert torch.equal(same(torch.ones(2, 1, 6, 4)), call(backbone, torch.ones(2, 1, 6, 4)))
    assert embedding_network("mine", backbone, call, SPEC, 8).head.weight.shape == (8, 5)


def test_the_trial_leaves_the_network_as_it_was():
    backbone = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5)).train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    assert feature_count("mine", backbone, call, SPEC) == 5
    assert backbone.training
    assert all(torch.equal(tensor, before[k]) for k, tensor in backbone.state_dict().items())


def test_a_file_may_have_the_classifier_that_was_taken_off(tmp_path):
    def network(*, last):
        backbone = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(24, 5), last))
        return embedding_network("mine", backbone, call, SPEC, 5)

    whole, target = network(last=nn.Linear(5, 5)), network(last=nn.Identity())
    torch.save(whole.backbone.state_dict(), tmp_path / "whole.pt")
    load_backbone(target, place=str(tmp_path / "whole.pt"))
    assert torch.equal(target.backbone[1][0].weight, whole.backbone[1][0].weight)
    with pytest.raises(UserError, match=r"'1\.1\.weight' .* weights of a larger network"):
        load_backbone(network(last=nn.ReLU()), place=str(tmp_path / "whole.pt"))
    target.backbone.pretrained_cfg = {"classifier": "1.1.linear"}  # as timm says it
    load_backbone(target, place=str(tmp_path / "whole.pt"))
    target.backbone.pretrained_cfg = {"classifier": ("head", "head_dist")}
    with pytest.raises(UserError, match="weights of a larger network"):
        load_backbone(target, place=str(tmp_path / "whole.pt"))


def test_what_cannot_work_is_said_in_one_line():
    message = r"mine cannot take images of 6x4 with 1 channels; it takes large ones \("
    with pytest.raises(UserError, match=message) as error:
        embedding_network("mine", nn.Conv2d(1, 5, 9), call, SPEC, 5, sizes="large ones")
    assert "\n" not in str(error.value)
    for called, message in [
        (lambda n, x: n(x), r"mine gives \(1, 5, 4, 2\) for one image"),
        (lambda n, x: call(n, x)[:, :0], r"mine gives \(1, 0\) for one image"),
        (lambda n, x: [n(x)], "mine gives list for one image"),
        # Pixels are hidden at random, in evaluation mode too.
        (lambda n, x: call(n, x * (torch.rand_like(x) > 0.5)), "another vector each time that it"),
    ]:
        with pytest.raises(UserError, match=message):
            embedding_network("mine", nn.Conv2d(1, 5, 3), called, SPEC, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions"),
    # Published sizes: torchvision's ResNet less its 1000-way layer.
    [("resnet18", 11.689512 - 0.513 + 0.262656), ("resnet50", 25.557032 - 2.049 + 1.049088)],
)
def test_parameter_counts_are_those_of_the_field(name, millions):
    network = build_network(name, ARCHITECTURES[name].input, 512)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=2e-6)


@pytest.mark.parametrize(("height", "width", "cells"), [(32, 32, 16), (28, 40, 20)])
def test_small_images_keep_their_map(height, width, cells):
    network = ResNet(
        BasicBlock, (1, 1, 1), (4, 8, 16), dim=5, channels=1, small_images=(height, width)
    )
    assert network.fc.in_features == 16 * cells
    assert network.eval()(torch.zeros(2, 1, height, width)).shape == (2, 5)


def test_a_shortcut_changes_nothing_where_the_shape_stays():
    assert isinstance(shortcut(8, 8, 1), nn.Identity)
    assert shortcut(8, 16, 2)(torch.zeros(2, 8, 6, 6)).shape == (2, 16, 3, 3)


def test_the_last_normalisation_has_no_trainable_scale():
    network = IResNet((1, 1, 1, 1), dim=7, channels=3, height=32, width=48)
    assert not network.features.weight.requires_grad
    assert (network.features.weight == 1).all()
    assert network.eval()(torch.zeros(2, 3, 32, 48)).shape == (2, 7)


PROJECTION_SPEC = InputSpec(1, 6, 1, fit=VECTORS)


def model_of_vectors(name):
    return Model(build_network(name, PROJECTION_SPEC, 3).eval(), name, PROJECTION_SPEC, 3)


def four_vectors():
    return np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def test_a_projection_is_a_matrix_and_a_shift():
    network = build_network("projection", PROJECTION_SPEC, 3, seed=1)
    layer, vectors = network.layers, four_vectors()
    expected = np.sqrt(6) * vectors @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    found = network(torch.from_numpy(vectors[:, None, None, :])).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["projection", "projection-mlp"])
def test_a_model_of_vectors_embeds_vectors_and_refuses_images(name, tmp_path):
    model, vectors = model_of_vectors(name), four_vectors()
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    embedded = loaded.embed(vectors)
    assert np.allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-6)
    assert np.array_equal(embedded, model.embed(vectors))
    with pytest.raises(UserError, match="the vectors have dimension 5; the model takes 6"):
        loaded.embed(vectors[:, :5])


def test_vectors_are_scaled_to_length_1_and_have_no_mirror_image():
    model, vectors = model_of_vectors("projection"), 10 * four_vectors()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = unit[:, None, :, None]
    assert np.allclose(model.embed(vectors), model.embed_pixels(rows), atol=1e-6)
    assert np.array_equal(model.raw_embeddings(rows), model.raw_embeddings(rows, flip_test=False))
    vectors[2] = 0
    with pytest.raises(UserError, match="vectors has rows of zeros only, first row 2"):
        model.embed(vectors)
