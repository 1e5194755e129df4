import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import unibct
from tests.models.cases import small_model
from unibct.data.training_classes import UNRECORDED, Choice, training_classes
from unibct.errors import UserError
from unibct.maps.vector_map import VectorMap
from unibct.models.input import InputSpec
from unibct.models.model_folder import (
    CLASSIFIER_FILE,
    MAP_FILE,
    MODEL_DESCRIPTION,
    WEIGHTS_FILE,
    files_digest,
    load_model,
    load_weights,
    read_weights,
    save_model,
    save_tensors,
    weight_files,
)


def test_the_names_stay_those_of_the_folders_that_users_have(tmp_path):
    names = (MODEL_DESCRIPTION, WEIGHTS_FILE, CLASSIFIER_FILE, MAP_FILE)
    stored = ["model.json", "model.safetensors", "classifier.safetensors", "adapter.safetensors"]
    assert list(names) == stored
    for name in names[:3]:
        (tmp_path / name).touch()
    assert weight_files(tmp_path) == [tmp_path / WEIGHTS_FILE], "those of the network"


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
        linear = [nn.Linear(2, 2) for _ in range(layers)]
        return nn.Sequential(nn.Sequential(*linear), nn.Identity())

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


def describe_without(folder, key, **more):
    """Write the description of a model folder as an earlier version did, without an entry."""
    described = json.loads((folder / "model.json").read_text())
    del described[key]
    (folder / "model.json").write_text(json.dumps(described | more))


CHOICE = Choice("α was chosen", "DATA", frozenset({"1"}), frozenset({"2", "3"}), "file")


def test_round_trip(tmp_path):
    spec = InputSpec(32, 32, 1, mean=0.25, std=0.125, fit="letterbox")
    model = replace(small_model(training={"method": "none"}, old_fingerprint="abc"), input=spec)
    save_model(model, tmp_path / "m")
    loaded = unibct.load_model(tmp_path / "m")
    assert (loaded.fingerprint, loaded.input) == (model.fingerprint, spec)
    assert (loaded.class_names, loaded.old_fingerprint) == (("a", "b"), "abc")
    assert loaded.training == {"method": "none"}
    assert torch.equal(loaded.class_weights, model.class_weights)
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32)).astype(np.uint8)
    assert np.array_equal(model.embed(images), loaded.embed(images))
    described = json.loads((tmp_path / "m" / "model.json").read_text())
    assert (described["architecture"], described["input"]["height"]) == ("resnet-small", 32)
    assert not list(tmp_path.glob("**/*.tmp"))


def test_weights_that_two_layers_share_are_kept(tmp_path):
    shared, other = torch.randn(3, 3), torch.randn(4)
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    tensors = tied.state_dict() | {"a": shared, "b": shared[:2], "c": other, "d": other[:0]}
    save_tensors(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    loaded = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert set(loaded) == set(tensors)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    tied.load_state_dict({name: loaded[name] for name in tied.state_dict()})


def test_the_source_of_class_numbers_is_kept(tmp_path):
    save_model(small_model(class_source="recordio-1"), tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.class_identities == ("a of recordio-1", "b of recordio-1")
    save_model(small_model(), tmp_path / "named")
    assert "class_source" not in json.loads((tmp_path / "named/model.json").read_text())
    assert load_model(tmp_path / "named").class_identities == ("a", "b")


def test_what_a_model_has_learnt_from_is_kept(tmp_path):
    own = training_classes(("a", "b"), None)
    save_model(small_model(), tmp_path / "m")
    assert json.loads((tmp_path / "m/model.json").read_text())["further_classes"]["complete"]
    assert load_model(tmp_path / "m").training_classes == own
    further = training_classes(("b", "c"), "file")
    model = small_model(further_classes=further).with_choice(CHOICE)
    further = model.further_classes
    save_model(model, tmp_path / "further")
    loaded = load_model(tmp_path / "further")
    assert loaded.further_classes.choices == {CHOICE}
    assert loaded.further_classes == further
    assert loaded.training_classes == own | further
    assert load_model(tmp_path / "m").fingerprint == loaded.fingerprint
    describe_without(tmp_path / "m", "further_classes")
    earlier = load_model(tmp_path / "m").training_classes
    assert earlier == replace(own, choices=frozenset({UNRECORDED}))


@pytest.mark.parametrize(
    ("recipe", "further", "complete"),
    [
        ({}, None, True),
        ({"weights": None, "warm_start": False}, None, True),
        ({"weights": "random"}, None, True),
        ({"weights": "backbone.safetensors"}, None, False),
        ({"download": True}, None, False),
        ({"warm_start": True}, training_classes(("c",), None), True),
        ({"warm_start": True}, None, False),
        ({"warm_start": True, "weights": "x.pt"}, training_classes(("c",), None), False),
    ],
)
def test_earlier_versions_took_all_first_weights_for_random_ones(
    recipe, further, complete, tmp_path
):
    save_model(small_model(training={"recipe": recipe}), tmp_path)
    stated = {} if further is None else {"further_classes": further.as_json()}
    describe_without(tmp_path, "further_classes", **stated)
    loaded = load_model(tmp_path)
    assert loaded.training_classes.complete == complete
    save_model(loaded, tmp_path / "again")
    assert load_model(tmp_path / "again").training_classes == loaded.training_classes


def test_earlier_versions_took_numbers_for_names(tmp_path):
    save_model(small_model(class_names=("0", "1"), class_source="set-1"), tmp_path)
    describe_without(tmp_path, "class_source")
    for class_source in (None, "set-1"):
        assert not load_model(tmp_path).training_classes.named_as(class_source)


def test_loading_names_what_is_wrong(tmp_path):
    (tmp_path / "old.onx").touch()
    (tmp_path / "trained" / "checkpoint-00001-000000").mkdir(parents=True)
    for place, message in [
        (".", r"is not a model folder: there is no model.json in it"),
        ("olds", "olds is not a model folder: it does not exist"),
        ("old.onx", "is not a model folder: it is a file"),
        ("trained", "its training has not finished; go on with"),
    ]:
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / place)
    save_model(small_model(), tmp_path / "m")
    save_model(small_model(1), tmp_path / "n")
    weights, other = (tmp_path / name / "model.safetensors" for name in "mn")
    for content, message in [
        (other.read_bytes(), r"does not belong to model.json"),
        (weights.read_bytes()[:9999], "cannot be loaded as a model"),
    ]:
        weights.write_bytes(content)
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / "m")
    description = tmp_path / "n" / "model.json"
    described = json.loads(description.read_text())
    without_classes = {key: value for key, value in described.items() if key != "classes"}
    for content, message in [
        (json.dumps(described | {"architecture": "vgg"}), "unknown architecture 'vgg'"),
        (json.dumps(described | {"format": 99}), "has format 99"),
        (json.dumps(described | {"dim": None}), "cannot be loaded"),
        (json.dumps(described | {"input": 3}), "cannot be loaded"),
        (json.dumps(without_classes), "lacks the entry 'classes'"),
        ("{", r"model.json cannot be read"),
    ]:
        description.write_text(content)
        with pytest.raises(UserError, match=message):
            load_model(tmp_path / "n")


def test_a_folder_never_mixes_two_models(tmp_path):
    save_model(small_model(), str(tmp_path / "m"))
    save_model(small_model(1, class_weights=None, class_names=("a",)), tmp_path / "m")
    assert load_model(tmp_path / "m").class_weights is None
    save_model(small_model(), tmp_path / "n")
    shutil.copy(tmp_path / "n" / "classifier.safetensors", tmp_path / "m")
    with pytest.raises(UserError, match=r"classifier.safetensors does not belong"):
        load_model(tmp_path / "m")


def test_an_adapted_model_keeps_its_map(tmp_path):
    old = small_model(3)
    turn = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))[0]
    model = small_model().adapted(VectorMap("procrustes", ((turn, None),)), old)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.fingerprint == model.fingerprint != small_model().fingerprint
    assert (loaded.vector_map.kind, loaded.old_fingerprint) == ("procrustes", old.fingerprint)
    images = np.random.default_rng(0).integers(0, 255, (5, 32, 32)).astype(np.uint8)
    assert np.array_equal(model.embed(images), loaded.embed(images))
    turned = small_model().embed(images) @ turn.T.numpy()
    assert np.allclose(loaded.embed(images), turned, atol=1e-5)
    save_model(small_model(), tmp_path / "m")
    assert not (tmp_path / "m" / "adapter.safetensors").exists()


def test_the_class_weights_may_be_left_out_and_the_device_is_checked(tmp_path):
    save_model(small_model(), tmp_path / "m")
    assert load_model(tmp_path / "m", with_classifier=False).class_weights is None
    assert load_model(tmp_path / "m").device == load_model(tmp_path / "m", device="auto").device
    with pytest.raises(UserError, match="device 'gpu' cannot be used: choose auto, cpu, cuda"):
        load_model(tmp_path / "m", device="gpu")
