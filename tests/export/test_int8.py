import numpy as np
import pytest

from tests.models.cases import small_model
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.evaluation.identification import identification
from unibct.evaluation.templates import class_templates
from unibct.export.graph import ExportedModel
from unibct.export.int8 import calibration_split, measure_int8_loss, write_int8


def noise(model, count):
    shape = (count, *model.input.frame.shape)
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.xdist_group("export")
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_the_embeddings_stay_close_and_the_file_gets_small(
    kind, small_file, products_file, products_model, tmp_path
):
    static = (small_model(), small_file)
    model, source = static if kind == "static" else (products_model, products_file)
    calibration = noise(model, 40)
    assert write_int8(source, tmp_path / "int8.onnx", calibration) == kind
    exported = ExportedModel(tmp_path / "int8.onnx")
    cosines = (exported.embed_pixels(calibration) * model.embed_pixels(calibration)).sum(axis=1)
    assert 0.9 < cosines.min() < 0.9999999
    assert (tmp_path / "int8.onnx").stat().st_size < 0.6 * source.stat().st_size
    assert exported.metadata["unibct.fingerprint"] == model.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]


@pytest.mark.xdist_group("export")
def test_what_cannot_be_done_is_said_in_one_line(small_file, tmp_path):
    with pytest.raises(UserError, match="cannot be made int8: ") as error:
        write_int8(small_file, tmp_path / "int8.onnx", np.zeros((4, 9, 9, 1), np.uint8))
    assert "\n" not in str(error.value)


class Rounded:
    """The model itself in the place of an exported file, with rounded embeddings."""

    def __init__(self, model, step=0.0):
        self.model, self.step = model, step

    def embed_pixels(self, pixels):
        vectors = self.model.embed_pixels(pixels)
        if self.step:
            vectors = np.round(vectors / self.step) * self.step
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


@pytest.mark.slow
@pytest.mark.parametrize("with_old", [False, True])
def test_the_loss_is_that_of_the_same_search(with_old, glyph_classes):
    model, old = small_model(), small_model(4)
    files = (Rounded(model), Rounded(model, 0.25))
    loss = measure_int8_loss(files, model, glyph_classes, old=old if with_old else None)
    assert loss.gallery == ("old" if with_old else "exact")
    exact = embed(model, glyph_classes).vectors
    int8 = np.round(exact / 0.25) * 0.25
    int8 /= np.linalg.norm(int8, axis=1, keepdims=True)
    gallery = embed(old, glyph_classes).vectors if with_old else exact
    split = calibration_split(glyph_classes)
    labels = glyph_classes.labels
    templates = class_templates(gallery[split.gallery], labels[split.gallery])
    classes = np.arange(len(glyph_classes.class_names))
    found = {criterion.metric: criterion for criterion in loss.differences}["top-1"]
    for vectors, value in ((exact, found.old_self), (int8, found.cross)):
        queries = vectors[split.query], labels[split.query]
        assert np.isclose(value, identification(*queries, templates, classes, ks=(1,))[1])
    assert any(criterion.difference != 0 for criterion in loss.differences)
    cosines = (exact * int8).sum(axis=1)
    assert np.isclose(loss.lowest_cosine, cosines.min(), atol=1e-5)
    assert np.isclose(loss.mean_cosine, cosines.mean(), atol=1e-5)
    values = loss.as_json()
    assert values["queries"] == len(split.query)
    top = next(metric for metric in values["metrics"] if metric["metric"] == "top-1")
    assert (top["exact"], top["int8"]) == (found.old_self, found.cross)


def test_calibration_images_are_no_queries(glyph_classes):
    split = calibration_split(glyph_classes)
    assert not set(split.gallery) & set(split.query)
    with pytest.raises(UserError, match="one class only"):
        calibration_split(glyph_classes.select(np.flatnonzero(glyph_classes.labels == 0)))
