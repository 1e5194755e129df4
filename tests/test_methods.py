import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.methods.cases import SETTINGS, batch, knowledge
from unibct.benchmark import DEFAULT_METHODS
from unibct.errors import UserError
from unibct.methods import (
    DEFAULT_METHOD,
    METHODS,
    NO_METHOD,
    allow_any_classes,
    find_method,
    require_known_classes,
    split_methods,
)


def test_new_classes_must_be_among_the_old_ones():
    require_known_classes(("a", "b", "c"), ("c", "a"))
    with pytest.raises(UserError, match="does not know 2 of the 3 new classes, first 'd'"):
        require_known_classes(("a", "b"), ("e", "a", "d"))


def test_most_methods_take_any_classes():
    allow_any_classes((), ("a",))


VARIANTS = [
    "advbct@released=true",
    "mixbct@warmup_epochs=2",
    "nccl@queue=5",
    "ract@tau=0.1",
    "unibct-plus@shared=false",
    "unibct-plus@own=false",
    "unibct-plus@prototype=true",
    "unibct-plus@centre=false",
    "unibct-plus@weight=0.5",
    "unibct-plus@weight=0,centre=false",
]


@pytest.mark.parametrize("name", [*METHODS, *VARIANTS])
def test_every_method_gives_a_loss_whose_gradient_reaches_the_new_model_only(name):
    old = knowledge()
    before = old.embeddings.clone()
    method = find_method(name).make(old, SETTINGS)
    new = torch.randn(24, 8)
    method.refresh(new if method.needs_new_embeddings else None)
    step = batch()
    loss = method.loss(step)
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    assert torch.equal(old.embeddings, before)
    assert not old.embeddings.requires_grad
    if name in ("none", "mixbct", "mixbct@warmup_epochs=2", "unibct-plus@weight=0,centre=false"):
        assert float(loss.detach()) == 0
    elif name == "unibct-plus@own=false":  # it draws the new embeddings through the classifier, too
        loss.backward()
        assert float(step.class_weights.grad.abs().sum()) > 0
    else:
        loss.backward()
        assert float(step.embeddings.grad.abs().sum()) > 0
    step = batch(range(24))
    changed = not torch.equal(method.classified(step), step.embeddings)
    centred = find_method(name).home.endswith("plus:UnibctPlus") and "centre=false" not in name
    assert changed == (centred or method.replaces_embeddings)
    assert method.replaces_embeddings == name.startswith("mixbct")
    assert all(not tensor.requires_grad for tensor in method.state().values())


def test_names():
    with pytest.raises(UserError, match="unknown method 'magic'; choose one of none, regress"):
        find_method("magic")
    assert [name for name, entry in METHODS.items() if not entry.needs_old_model] == ["none"]
    waiting = [name for name, entry in METHODS.items() if entry.has_warmup]
    assert waiting == list(DEFAULT_METHODS[:-1])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unibct-pluss", "unknown method 'unibct-pluss', did you mean 'unibct-plus'?;"),
        ("magic@weight=1", "unknown method 'magic'; choose one of none,"),
        (
            "unibct-plus@wight=0.5",
            "method unibct-plus@wight=0.5: there is no setting 'wight'; write "
            "NAME@KEY=VALUE,KEY=VALUE with keys from shared, own, prototype, centre, weight, eta,",
        ),
        ("unibct@weight=1", "there is no setting 'weight'"),
        ("unibct@", "there is no setting ''"),
        ("unibct-plus@weight=heavy", "weight must be a number, not 'heavy'"),
        ("unibct-plus@own=1", "own must be true or false, not '1'"),
        ("nccl@queue=1.5", "queue must be a whole number, not '1.5'"),
        ("nccl@queue", "queue must be a whole number, not ''"),
    ],
)
def test_an_unknown_name_or_setting_is_answered_by_what_may_be_meant(name, told):
    with pytest.raises(UserError) as error:
        find_method(name)
    assert told in str(error.value)


def test_a_variant_is_its_method_with_settings():
    plus = find_method("unibct-plus")
    half = find_method("unibct-plus@weight=1, own = false")
    assert half.options == {"weight": 1.0, "own": False}
    assert replace(half, options={}) == plus
    early, late = find_method("unibct@warmup_epochs=0"), find_method("lce@warmup_epochs=2,eta=3.5")
    assert (early.recipe, early.has_warmup) == ({"warmup_epochs": 0}, False)
    assert (late.recipe, late.has_warmup) == ({"warmup_epochs": 2, "eta": 3.5}, True)
    assert find_method("ract@tau=0.1").options == {
        "among_new": True,
        "tau": 0.1,
    }  # its own, not the recipe's
    assert find_method("contrast@tau=0.1").recipe == {"tau": 0.1}
    assert find_method("unibct@warm_start=true").uses_old_classifier(False)
    assert not find_method("unibct-plus@warm_start=false").uses_old_classifier(None)


def test_a_list_of_methods_may_hold_variants_with_several_settings():
    text = "none, unibct-plus@weight=1,own=false ,lce@eta=2,unibct,"
    assert split_methods(text) == ["none", "unibct-plus@weight=1,own=false", "lce@eta=2", "unibct"]
    assert split_methods("a=1,unibct,b=1") == ["a=1", "unibct", "b=1"]
    assert split_methods("") == []


def test_the_names_stand_alone():
    assert {DEFAULT_METHOD, NO_METHOD} <= set(METHODS)
    code = "import sys, unibct.methods; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_descriptions_fit_a_terminal_of_80_columns():
    widest = max(map(len, METHODS))
    for name, entry in METHODS.items():
        assert 0 < len(entry.description) <= 80 - widest - 6, name
        assert entry.description.isprintable(), name


def test_who_needs_the_old_class_weights():
    plus, paper = find_method("unibct-plus"), find_method("unibct")
    assert [plus.uses_old_classifier(value) for value in (None, True, False)] == [True, True, False]
    assert [paper.uses_old_classifier(value) for value in (None, True, False)] == [
        False,
        True,
        False,
    ]
    assert find_method("bct").uses_old_classifier(False)
