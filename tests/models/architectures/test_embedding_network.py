import pytest
import torch
from torch import nn

from unibct.errors import UserError
from unibct.models.architectures.embedding_network import (
    embedding_network,
    feature_count,
    load_backbone,
    pooled,
)
from unibct.models.input import InputSpec

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
    with pytest.raises(UserError, match=r"mine gives \(1, 5, 4, 2\) for one image"):
        embedding_network("mine", nn.Conv2d(1, 5, 3), lambda n, x: n(x), SPEC, 5)
    with pytest.raises(UserError, match=r"mine gives \(1, 0\) for one image"):
        embedding_network("mine", nn.Conv2d(1, 5, 3), lambda n, x: call(n, x)[:, :0], SPEC, 5)
    with pytest.raises(UserError, match="mine gives list for one image"):
        embedding_network("mine", nn.Conv2d(1, 5, 3), lambda n, x: [n(x)], SPEC, 5)
    with pytest.raises(UserError, match="another vector each time that it sees the same image"):
        embedding_network("mine", nn.Conv2d(1, 5, 3), masked, SPEC, 5)


def masked(network, x):
    """Hide pixels at random, in evaluation mode too."""
    return call(network, x * (torch.rand_like(x) > 0.5))
