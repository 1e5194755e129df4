from unibct.advice.applicable import method_advice
from unibct.methods.table import METHODS


def obstacles(old, new, *, has_classifier):
    found = method_advice(old, new, has_classifier=has_classifier)
    return {method.name: method.obstacle for method in found if not method.applies}


def test_only_bct_asks_for_known_classes_and_the_old_classifier():
    assert obstacles("abc", "ab", has_classifier=True) == {}
    unknown = obstacles("abc", "cd", has_classifier=True)
    assert list(unknown) == ["bct"]
    assert "does not know 1 of the 2 new classes, first 'd'" in str(unknown["bct"])
    assert "the old model has none" in obstacles("abc", "ab", has_classifier=False)["bct"]


def test_every_method_is_listed_once_and_the_default_is_marked():
    advice = [method.as_json() for method in method_advice("a", "b", has_classifier=True)]
    assert [entry["name"] for entry in advice] == [name for name in METHODS if name != "none"]
    assert [entry["name"] for entry in advice if entry["default"]] == ["unibct-plus"]


def test_a_method_that_mixes_embeddings_needs_equal_dimensions():
    found = method_advice("a", "a", has_classifier=True, dims=(256, 128))
    assert {m.name for m in found if not m.applies} == {"mixbct"}
    assert all(m.applies for m in method_advice("a", "a", has_classifier=True, dims=(128, 128)))
