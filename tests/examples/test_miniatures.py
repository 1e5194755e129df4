import pytest

from unibct.data.readers import open_images
from unibct.evaluation.protocols.ijb_files import read_meta
from unibct.examples.miniatures import make_ijbc, make_ms1mv3


@pytest.mark.slow
def test_the_miniature_has_the_true_layout(tmp_path):
    make_ms1mv3(tmp_path / "ms1mv3", identities=20, images_each=6)
    make_ijbc(tmp_path / "ijbc", subjects=12)
    images = open_images(tmp_path / "ms1mv3")
    assert (len(images), len(images.class_names)) == (120, 20)
    assert images.read(images.ids[0]).shape == (112, 112, 3)
    assert (tmp_path / "ms1mv3/property").read_text() == "20,112,112"
    meta = read_meta(tmp_path / "ijbc")
    assert len(meta.images) == 12 * 12
    assert len(meta.first) == 12 * 24
    assert meta.same.sum() == 24
    assert [len(g.templates) for g in meta.galleries.values()] == [6, 6]
