from unibct.benchmark.method_groups import (
    ALL_METHODS,
    CHAIN_METHODS,
    DEFAULT_METHODS,
    GROUPS,
    describe_groups,
)
from unibct.methods import NO_METHOD, find_method


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
