from tests.gallery.toys import toy_images


def test_the_keys_that_machines_rely_on(upgraded):
    upgraded.backfill(toy_images(), share=0.25)
    status = upgraded.status().as_json()
    old, new = status["models"]
    assert status["rows"] == 48
    assert status["models"] == {old: 36, new: 12}
    assert status["searching"] == new
    assert status["replaced"] == {old: 12}
    assert status["row_types"] == {old: "older", new: "own"}
    assert status["savings"]["rows"] == 36
    assert status["savings"]["seconds"] == 36 / status["savings"]["images_per_second"]
    assert [step["action"] for step in status["steps"]] == ["create", "add", "upgrade", "backfill"]
    assert status["known_queries"] == 32


def test_rows_of_a_newer_model_are_not_searched_after_a_rollback(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    upgraded.rollback()
    status = upgraded.status().as_json()
    assert status["unsearchable"] == 6
    assert list(status["row_types"].values()) == ["own", "not searched"]
