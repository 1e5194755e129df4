import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

from tests.models.cases import small_model
from unibct.errors import UserError
from unibct.models.folder import save_model
from unibct.models.weights_file import files_digest, load_weights, read_weights, weight_files


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))


def test_files_of_a_folder(tmp_path):
    for name in ("model-00002.safetensors", "model-00001.safetensors", "pytorch_model.bin"):
        (tmp_path / name).touch()
    names = [path.name for path in weight_files(tmp_path)]
    assert names == ["model-00001.safetensors", "model-00002.safetensors"]
    assert weight_files(tmp_path / "pytorch_model.bin") == [tmp_path / "pytorch_model.bin"]
    save_model(small_model(), tmp_path / "m")
    assert weight_files(tmp_path / "m") == [tmp_path / "m" / "model.safetensors"]
    (tmp_path / "empty").mkdir()
    for place, message in [("nothing", "no such file"), ("empty", "has no .safetensors file")]:
        with pytest.raises(UserError, match=message):
            weight_files(tmp_path / place)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_torch_files_hold_tensors_only(tmp_path, wrapper):
    tensors = {"a": torch.ones(2)}
    torch.save(tensors if wrapper is None else {wrapper: tensors, "epoch": 3}, tmp_path / "w.pt")
    read = read_weights([tmp_path / "w.pt"])
    assert list(read) == ["a"]
    assert torch.equal(read["a"], torch.ones(2))


class Harmful:
    """Something that would run code when it is unpickled."""

    def __reduce__(self):
        return (print, ("harm",))


def test_nothing_else_is_unpickled(tmp_path, capsys):
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Harmful()))
    torch.save({"a": Harmful()}, tmp_path / "z.pt")
    (tmp_path / "w.npy").touch()
    (tmp_path / "w.safetensors").write_bytes(b"no")
    for name in ("w.pt", "z.pt", "w.npy", "w.safetensors"):
        with pytest.raises(UserError, match=name) as error:
            read_weights([tmp_path / name])
        assert "\n" not in str(error.value)
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(UserError, match="holds no tensors by name"):
        read_weights([tmp_path / "list.pt"])
    assert "harm" not in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "resnet."])
def test_a_prefix_before_all_names_is_taken_off(prefix):
    source, target = network(), network()
    tensors = {f"{prefix}{k}": v + 1 for k, v in source.state_dict().items()}
    tensors["classifier.bias"] = torch.ones(3)
    load_weights(target, tensors, "file", prefixes=("resnet.",))
    for name, tensor in source.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(target.state_dict()[name], tensor + 1)


def test_only_the_head_may_be_missing_or_of_another_shape():
    tensors = network().state_dict()
    target = network()
    before = target[2].weight.clone()
    load_weights(target, tensors | {"2.weight": torch.ones(9, 3)}, "file", head=("2.",))
    assert torch.equal(target[2].weight, before)
    assert torch.equal(target[0].weight, tensors["0.weight"])
    with pytest.raises(UserError, match=r"2.weight has the shape \(9, 3\), but .* has \(4, 3\)"):
        load_weights(target, tensors | {"2.weight": torch.ones(9, 3)}, "file")
    del tensors["0.bias"]
    with pytest.raises(UserError, match=r"file has no tensor '0.bias': these are weights of"):
        load_weights(target, tensors, "file", head=("2.",))


def test_weights_of_a_deeper_network_are_refused():
    def deep(layers):
        return nn.Sequential(
            nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)]), nn.Identity()
        )

    tensors, more = deep(3).state_dict(), torch.ones(2)
    with pytest.raises(UserError, match=r"file has a tensor '0\.2\.weight' that"):
        load_weights(deep(2), tensors, "file")
    load_weights(deep(3), tensors | {"0.mask": more, "head.bias": more}, "file", head=("x.",))
    for surplus in ("0.weight", "1.weight", "1.0.bias"):
        with pytest.raises(UserError, match=surplus):
            load_weights(deep(3), tensors | {surplus: more}, "file")
    load_weights(deep(3), tensors | {"1.weight": more}, "file", removed=("1.",))
    counted = nn.Sequential(nn.BatchNorm1d(2, affine=False, track_running_stats=False))
    load_weights(counted, {"0.num_batches_tracked": more}, "file")


def test_the_digest_is_that_of_the_contents(tmp_path):
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        safetensors.torch.save_file({"x": torch.full((2,), value)}, tmp_path / name)
    digests = {name: files_digest([tmp_path / name]) for name in "abc"}
    assert digests["a"] == digests["b"] != digests["c"]
