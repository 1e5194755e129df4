from unibct.benchmark.method_groups import (
    ALL_METHODS,
    CHAIN_METHODS,
    DEFAULT_METHODS,
    GROUPS,
    describe_groups,
)
from unibct.methods import METHODS, NO_METHOD, find_method


def test_every_group_names_methods_and_is_in_the_help():
    for name, group in GROUPS.items():
        assert f"{name} (" in describe_groups()
        for method in group.methods:
            assert method in ALL_METHODS or find_method(method)
    assert set(DEFAULT_METHODS) <= set(ALL_METHODS)
    assert NO_METHOD not in CHAIN_METHODS
    assert DEFAULT_METHODS == (
        "none", "regress", "contrast", "bct", "unibct-centroid", "unibct-drop", "unibct",
        "unibct-plus",
    )  # fmt: skip


def test_both_groups_of_starts_have_every_method_once():
    for name, has_warmup in (("warmup", True), ("no-warmup", False)):
        methods = GROUPS[name].methods
        assert all(find_method(method).has_warmup == has_warmup for method in methods)
        origins = {method.removesuffix("-no-warmup").removesuffix("-warmup") for method in methods}
        assert len(methods) == len(origins)
        assert origins == set(METHODS) - {"none", "unibct-plus"}
