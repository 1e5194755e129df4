from unibct.gallery.asked import asked_counts, remember_asked


def test_counts_add_up(tmp_path):
    assert asked_counts(tmp_path) == {}
    remember_asked(tmp_path, [])
    assert asked_counts(tmp_path) == {}
    remember_asked(tmp_path, ["a", "b", "a"])
    remember_asked(tmp_path, ["b", "c"])
    assert asked_counts(tmp_path) == {"a": 2, "b": 2, "c": 1}
