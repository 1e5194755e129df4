import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from tests.embedders.networks import matrix, write_onnx
from tests.notes import Notes, show
from unibct.arrays import normalized
from unibct.embedders import open_embedder
from unibct.errors import UserError

PIXELS = np.random.default_rng(1).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)


@pytest.fixture
def small_file(tmp_path):
    """A file that takes images of 4×6 and multiplies them with ``matrix(72, 7)``."""
    return write_onnx(tmp_path / "m.onnx", ["n", 3, 4, 6], matrix(72, 7))


def oracle(weights, images):
    return normalized(images.reshape(len(images), -1).astype(np.float64) @ weights)


def test_layout_and_size_come_from_the_graph(small_file):
    notes = show(Notes())
    embedder = open_embedder(f"onnx:{small_file}")
    assert (embedder.dim, embedder.input.frame[:3]) == (7, (4, 6, 3))
    expected = oracle(matrix(72, 7), ((PIXELS / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2))
    assert np.allclose(embedder.embed_pixels(PIXELS), expected, atol=1e-5)
    assert "4×6×3 rgb in nchw" in notes.texts[0]
    assert "mean=0.5,0.5,0.5" in notes.texts[0]
    assert np.allclose(
        open_embedder(small_file).embed(PIXELS), expected, atol=1e-5
    )  # by its suffix


def test_options_change_what_the_file_gets(tmp_path):
    weights = matrix(72, 7)
    path = write_onnx(tmp_path / "m.onnx", ["n", "h", "w", 3], weights)
    with pytest.raises(UserError, match="leaves its image size open"):
        open_embedder(f"onnx:{path}")
    options = "size=4x6&mean=0.1,0.2,0.3&std=0.2&order=bgr"
    embedder = open_embedder(f"onnx:{path}?{options}")
    expected = oracle(weights, (PIXELS[..., ::-1] / 255 - [0.1, 0.2, 0.3]) / 0.2)
    assert np.allclose(embedder.embed_pixels(PIXELS), expected, atol=1e-5)
    others = {open_embedder(f"onnx:{path}?size=4x6").fingerprint, embedder.fingerprint}
    assert len(others) == 2
    for bad in ("size=4x6&layout=x", "size=4x6&std=0", "size=4x6&output=x", "size=4x6&a=1"):
        with pytest.raises(UserError):
            open_embedder(f"onnx:{path}?{bad}")
    assert embedder.outputs(PIXELS[:0]).shape == (0, 7)


@pytest.mark.parametrize("bad", ["mean=127", "mean=nan", "mean=-1", "std=0", "std=inf", "std=58"])
def test_mean_and_deviation_are_of_pixels_from_0_to_1(small_file, bad):
    with pytest.raises(UserError, match=r"m\.onnx\?.* does not fit .* divide by 255 if it counts"):
        open_embedder(f"onnx:{small_file}?{bad}")


def test_one_side_may_be_open(tmp_path, capfd):
    path = write_onnx(tmp_path / "m.onnx", ["n", 3, 4, "w"], matrix(72, 7))
    for options in ("", "?size=6x6"):
        with pytest.raises(UserError, match=r"takes images of 4xany: write onnx:FILE\?size="):
            open_embedder(f"onnx:{path}{options}")
    assert open_embedder(f"onnx:{path}?size=4x6").input.frame[:2] == (4, 6)
    with pytest.raises(UserError, match=r"m\.onnx\?size=4x7 cannot take images of 4x7 with 3 ch"):
        open_embedder(f"onnx:{path}?size=4x7")
    assert capfd.readouterr().err == ""


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture
def runtime(monkeypatch):
    """ONNX Runtime as on a machine with GPUs: what was asked for, and what it has and can load."""
    import onnxruntime

    real = onnxruntime.InferenceSession
    machine = SimpleNamespace(has=[CUDA, CPU], loads=[CUDA, CPU], asked=[])

    def session(path, options, providers):
        machine.asked.append(providers)
        names = [name if isinstance(name, str) else name[0] for name in providers]
        opened = real(path, options, providers=[CPU])
        opened.get_providers = lambda: [name for name in names if name in machine.loads]
        return opened

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: machine.has)
    return machine


@pytest.mark.parametrize(("device", "number"), [("cuda", 2), ("cuda:1", 1)])
def test_each_process_runs_it_on_its_own_gpu(small_file, monkeypatch, runtime, device, number):
    monkeypatch.setenv("LOCAL_RANK", "2")
    open_embedder(f"onnx:{small_file}", device=device)
    assert runtime.asked == [[(CUDA, {"device_id": number, "use_tf32": 0}), CPU]]


@pytest.mark.parametrize("lacks", ["has", "loads"])
def test_a_gpu_that_was_asked_for_is_never_the_cpu_in_silence(
    small_file, monkeypatch, runtime, lacks
):
    path = small_file
    setattr(runtime, lacks, [CPU])
    for device in ("cuda", "cuda:0", torch.device("cuda", 0)):
        with pytest.raises(UserError, match=r"m\.onnx cannot run on cuda.*onnxruntime-gpu"):
            open_embedder(f"onnx:{path}", device=device)
    with pytest.raises(UserError, match="does not run on meta here"):
        open_embedder(f"onnx:{path}", device="meta")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    notes = show(Notes())
    assert open_embedder(f"onnx:{path}", device="auto").dim == 7
    assert sum("m.onnx runs on the CPU" in text for text in notes.texts) == 1


def test_auto_is_the_gpu_where_there_is_one_and_says_nothing_of_the_cpu_elsewhere(
    small_file, monkeypatch, runtime
):
    notes = show(Notes())
    for name in ("auto", "cpu"):
        open_embedder(f"onnx:{small_file}", device=name)
        assert not any("runs on the CPU" in text for text in notes.texts)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    open_embedder(f"onnx:{small_file}", device="auto")
    assert runtime.asked == [[CPU], [CPU], [(CUDA, {"device_id": 0, "use_tf32": 0}), CPU]]


def test_an_exported_file_describes_itself(tmp_path):
    weights, notes = matrix(72, 7), show(Notes())
    described = {"height": 4, "width": 6, "channels": 3, "layout": "nchw"}
    described |= {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}
    path = write_onnx(tmp_path / "m.onnx", ["n", 3, "h", "w"], weights, metadata=described)
    embedder = open_embedder(f"onnx:{path}")
    expected = oracle(weights, (PIXELS / 255).transpose(0, 3, 1, 2))
    assert np.allclose(embedder.embed_pixels(PIXELS), expected, atol=1e-5)
    assert notes.texts == []


def test_uint8_input_gets_the_pixels_as_they_are_and_a_fixed_batch_is_filled(tmp_path):
    weights = matrix(72, 7)
    path = write_onnx(tmp_path / "m.onnx", [2, 4, 6, 3], weights, dtype=TensorProto.UINT8)
    notes, embedder = show(Notes()), open_embedder(f"onnx:{path}")
    assert notes.texts[0].endswith("write onnx:FILE?order=bgr")
    assert np.allclose(embedder.embed_pixels(PIXELS), oracle(weights, PIXELS), atol=1e-5)
    both = embedder.raw_embeddings(PIXELS)
    views = PIXELS.astype(np.float32) + PIXELS[:, :, ::-1]
    assert np.allclose(both, views.reshape(5, -1) @ weights, rtol=1e-4)
    assert embedder.outputs(PIXELS[:0]).shape == (0, 7)
    for option in ("mean=0", "std=1"):  # would change the fingerprint and nothing else
        with pytest.raises(UserError, match=f"takes pixels 0 to 255; leave {option[:-2]} out"):
            open_embedder(f"onnx:{path}?{option}")


def test_the_fingerprint_follows_the_weights_even_in_a_file_beside(tmp_path):
    paths = []
    for seed in (0, 1):
        (tmp_path / f"{seed}").mkdir()
        path = write_onnx(tmp_path / f"{seed}/m.onnx", ["n", 3, 4, 6], matrix(72, 7, seed))
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        paths.append(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len({open_embedder(path).fingerprint for path in paths}) == 2


def test_what_is_no_embedder_is_named(small_file, tmp_path, monkeypatch):
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    write_onnx(tmp_path / "flat.onnx", ["n", 72], matrix(72, 7))
    for name, message in [
        ("none.onnx", "is not there"),
        ("bad.onnx", "cannot be opened as an ONNX file"),
        ("m.onnx?output=copy", "name the embedding with"),
        ("m.onnx?output=score", "name the embedding with"),
        ("m.onnx?fit=vectors", "'vectors' is not one of stretch, crop, letterbox"),
        ("flat.onnx", "not images"),
    ]:
        with pytest.raises(UserError, match=message):
            open_embedder(f"onnx:{tmp_path}/{name}")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'unibct\[onnx\]'"):
        open_embedder(f"onnx:{small_file}")
