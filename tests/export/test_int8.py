import numpy as np
import pytest

from tests.models.cases import small_model
from unibct.errors import UserError
from unibct.export.int8 import write_int8
from unibct.export.session import ExportedModel

pytestmark = pytest.mark.xdist_group("export")


def noise(model, count):
    shape = (count, *model.input.frame.shape)
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_the_embeddings_stay_close_and_the_file_gets_small(
    kind, small_file, products_file, products_model, tmp_path
):
    model = small_model() if kind == "static" else products_model
    source = small_file if kind == "static" else products_file
    calibration = noise(model, 40)
    assert write_int8(source, tmp_path / "int8.onnx", calibration) == kind
    exported = ExportedModel(tmp_path / "int8.onnx")
    cosines = (exported.embed_pixels(calibration) * model.embed_pixels(calibration)).sum(axis=1)
    assert 0.9 < cosines.min() < 0.9999999
    assert (tmp_path / "int8.onnx").stat().st_size < 0.6 * source.stat().st_size
    assert exported.metadata["unibct.fingerprint"] == model.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]


def test_what_cannot_be_done_is_said_in_one_line(small_file, tmp_path):
    with pytest.raises(UserError, match="cannot be made int8: ") as error:
        write_int8(small_file, tmp_path / "int8.onnx", np.zeros((4, 9, 9, 1), np.uint8))
    assert "\n" not in str(error.value)
