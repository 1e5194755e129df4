import json

import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.data.image_set import ImageSet
from unibct.data.training_classes import UNKNOWN_CLASSES, UNKNOWN_SOURCE, training_classes
from unibct.embeddings import folder as folder_module
from unibct.embeddings import layout, rows
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.writing import save_embeddings
from unibct.errors import UserError


def test_opening_reads_nothing_but_the_description(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    with monkeypatch.context() as patch:
        for module in (folder_module, layout, rows):
            for name in ("map_array", "read_text", "file_digest"):
                patch.setattr(module, name, refuse, raising=False)
        opened = open_embeddings(folder, verify=False)
        assert opened.vectors.shape == (25, 6)
    assert len(opened.ids) == len(opened.labels) == 25


@pytest.mark.parametrize("name", ["vectors-000001.npy", "labels-000002.npy", "ids-000000.txt"])
def test_damage_is_found_on_opening(folder, name, monkeypatch):
    data = bytearray((folder / name).read_bytes())
    data[-2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name} is damaged \(its checksum.*embed the images"):
        open_embeddings(folder)
    monkeypatch.setattr(folder_module, "VERIFIED_BYTES", 100)
    open_embeddings(folder)
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(UserError, match=rf"{name} is damaged \(\d+ bytes instead of"):
        open_embeddings(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"{name} cannot be read"):
        open_embeddings(folder)


def test_damaged_classes_are_found(folder):
    (folder / "classes.txt").write_text("a\nb\nd\n")
    with pytest.raises(UserError, match=r"classes.txt is damaged"):
        open_embeddings(folder)
    (folder / "classes.txt").unlink()
    with pytest.raises(UserError, match=r"classes.txt cannot be read"):
        _ = open_embeddings(folder, verify=False).class_names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "has format 1, and this unibct reads 2; embed the images again"),
        ({"images": 7}, "says 7 images, but its shards have 25"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"shards": [3]}, "cannot be understood"),
        ({"dim": 5}, None),
    ],
)
def test_wrong_descriptions_are_named(folder, change, message):
    path = folder / "embeddings.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | change))
    if message is None:
        with pytest.raises(UserError, match=r"shape \(7, 6\), but embeddings.json says"):
            np.asarray(open_embeddings(folder).vectors)
        return
    with pytest.raises(UserError, match=message):
        open_embeddings(folder)
    del described["model"]
    path.write_text(json.dumps(described))
    with pytest.raises(UserError, match="lacks the entry 'model'"):
        open_embeddings(folder)
    path.write_text("[]")
    with pytest.raises(UserError, match="cannot be understood"):
        open_embeddings(folder)


def test_embeddings_check_themselves():
    original = random_embeddings(3)
    with pytest.raises(UserError, match="3 vectors and 2 ids"):
        Embeddings(original.vectors, original.ids[:2], original.labels, original.class_names, "m")
    with pytest.raises(UserError, match="3 vectors and 2 labels"):
        Embeddings(original.vectors, original.ids, original.labels[:2], original.class_names, "m")
    with pytest.raises(UserError, match="beyond the 3 class names"):
        Embeddings(original.vectors, original.ids, original.labels + 3, original.class_names, "m")
    with pytest.raises(UserError, match="must be float32"):
        Embeddings(
            original.vectors.astype(float), original.ids, original.labels, original.class_names, "m"
        )


def test_ids_may_be_any_sequence():
    given = Embeddings(np.ones((2, 3), np.float32), ["a", "b"], np.array([0, 0]), ("x",), "m")
    assert given.ids == ("a", "b")


def test_rows_follow_the_ids(glyph_classes, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(len(glyph_classes), 6)).astype(np.float32)
    original = Embeddings(
        vectors, glyph_classes.ids, glyph_classes.labels, glyph_classes.class_names, "model"
    )
    save_embeddings(original, tmp_path / "emb")
    opened = open_embeddings(tmp_path / "emb")
    three = glyph_classes.select([50, 3, 20])
    assert np.array_equal(opened.rows_of(three), opened.vectors[[50, 3, 20]])
    fewer = Embeddings(
        np.array(opened.vectors[:2]),
        opened.ids[:2],
        opened.labels[:2],
        opened.class_names,
        opened.fingerprint,
    )
    with pytest.raises(UserError, match=r"3 images of .* have no embedding"):
        fewer.rows_of(three)


def test_a_folder_without_embeddings_is_named(folder):
    with pytest.raises(UserError, match="not an embeddings folder"):
        open_embeddings(folder.parent)


def test_folders_that_were_made_before_do_not_know_the_training_classes(folder):
    """They have no entries about it; nothing is guessed."""
    described = json.loads((folder / "embeddings.json").read_text())
    assert not {"class_source", "training_classes"} & set(described)
    opened = open_embeddings(folder)
    assert (opened.class_source, opened.training_classes) == (UNKNOWN_SOURCE, UNKNOWN_CLASSES)


def test_earlier_folders_do_not_know_what_first_weights_have_learnt(folder):
    known = training_classes(["a", "b"], None)
    embeddings = open_embeddings(folder)
    again = folder.with_name("again")
    save_embeddings(embeddings.changed(fingerprint="f", training_classes=known), again)
    assert open_embeddings(again).training_classes == known
    path = again / layout.DESCRIPTION_FILE
    content = json.loads(path.read_text())
    del content["training_classes"]["choices"]
    path.write_text(json.dumps(content))
    earlier = open_embeddings(again).training_classes
    assert (earlier.digests, earlier.complete) == (known.digests, False)


def test_some_images_in_their_own_order():
    whole = random_embeddings(6)
    trained = training_classes(("x",), None)
    whole = Embeddings(
        whole.vectors, whole.ids, whole.labels, whole.class_names, "m", training_classes=trained
    )
    ids = (whole.ids[4], whole.ids[1])
    images = ImageSet("two", ids, np.array([1, 0]), ("p", "q"), read=None, class_source="file")
    chosen = whole.of_images(images)
    assert np.array_equal(chosen.vectors, whole.vectors[[4, 1]])
    assert (chosen.ids, chosen.class_names, chosen.class_source) == (ids, ("p", "q"), "file")
    assert (chosen.fingerprint, chosen.training_classes) == ("m", trained)
