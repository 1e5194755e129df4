import subprocess
import sys

import pytest
import torch

from tests.methods.cases import SETTINGS, batch, knowledge
from unibct.benchmark.method_groups import PAPER_METHODS
from unibct.errors import UserError
from unibct.methods import (
    ABLATIONS,
    DEFAULT_METHOD,
    METHODS,
    NO_METHOD,
    OTHER_START,
    allow_any_classes,
    find_method,
    require_known_classes,
)


def test_new_classes_must_be_among_the_old_ones():
    require_known_classes(("a", "b", "c"), ("c", "a"))
    with pytest.raises(UserError, match="does not know 2 of the 3 new classes, first 'd'"):
        require_known_classes(("a", "b"), ("e", "a", "d"))


def test_most_methods_take_any_classes():
    allow_any_classes((), ("a",))


@pytest.mark.parametrize("name", [*METHODS, *ABLATIONS])
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
    if name in ("none", "plus-no-loss", "mixbct", "mixbct-warmup"):
        assert float(loss) == 0
    elif name == "plus-no-own":  # it draws the new embeddings through the classifier, too
        loss.backward()
        assert float(step.class_weights.grad.abs().sum()) > 0
    else:
        loss.backward()
        assert float(step.embeddings.grad.abs().sum()) > 0
    step = batch(range(24))
    changed = not torch.equal(method.classified(step), step.embeddings)
    centred = find_method(name).home == "plus:UnibctPlus" and name != "plus-uncentred"
    assert changed == (centred or method.replaces_embeddings)
    assert method.replaces_embeddings == name.startswith("mixbct")
    assert all(not tensor.requires_grad for tensor in method.state().values())


def test_names():
    with pytest.raises(UserError, match="unknown method 'magic'; choose one of none, regress"):
        find_method("magic")
    assert [name for name, entry in METHODS.items() if not entry.needs_old_model] == ["none"]
    assert [name for name, entry in METHODS.items() if entry.has_warmup] == list(PAPER_METHODS)
    assert not set(METHODS) & set(ABLATIONS)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "unibct-warmup",
            "unknown method 'unibct-warmup': 'unibct' itself starts after a warm-up;",
        ),
        ("mixbct-no-warmup", ": 'mixbct' itself starts from the first step;"),
        ("unibct-plus-no-warmup", ": 'unibct-plus' itself starts from the first step;"),
        ("unibct-plus-warmup", ", did you mean 'plus-warmup'?;"),
        ("unibct-no-warm", ", did you mean 'unibct-no-warmup'?;"),
        ("magic", "unknown method 'magic';"),
    ],
)
def test_an_unknown_name_is_answered_by_what_may_be_meant(name, told):
    with pytest.raises(UserError) as error:
        find_method(name)
    assert told in str(error.value)


def test_every_method_has_a_variant_with_the_other_start():
    names = [name for name in METHODS if name not in ("none", "unibct-plus")]
    assert len(OTHER_START) == len(names)
    for name in names:
        entry = find_method(name)
        variant = find_method(f"{name}-no-warmup" if entry.has_warmup else f"{name}-warmup")
        assert variant.has_warmup != entry.has_warmup
        assert (variant.home, variant.options) == (entry.home, entry.options)
        assert variant.check_classes is entry.check_classes


def test_the_names_stand_alone():
    assert {DEFAULT_METHOD, NO_METHOD} <= set(METHODS)
    code = "import sys, unibct.methods; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_descriptions_fit_a_terminal_of_80_columns():
    widest = max(map(len, METHODS))
    for name, entry in (METHODS | ABLATIONS).items():
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
