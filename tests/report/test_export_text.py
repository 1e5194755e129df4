from unibct.report.export_text import export_text

EXACT = {
    "file": "model.onnx",
    "bytes": 2_340_000,
    "agreement": {"images": 1000, "lowest": 0.9999991, "mean": 1.0, "worst": "a"},
}
LOSS = {
    "gallery": "old",
    "queries": 1234,
    "lowest_cosine": 0.9,
    "mean_cosine": 0.99,
    "speed": 1.5,
    "metrics": [
        {"metric": "top-1", "exact": 0.5, "int8": 0.49, "difference": -0.01, "interval": [-0.02, 0]}
    ],
}


def test_an_exact_file_in_one_line():
    assert export_text(EXACT) == (
        "model.onnx: 2.3 MB; agrees with the model on 1,000 images, lowest cosine 0.9999991"
    )


def test_an_int8_file_with_its_loss():
    lines = export_text(EXACT | {"int8": "static", "loss": LOSS}).splitlines()
    assert "; before int8 it agrees with the model on 1,000 images" in lines[0]
    assert lines[1].startswith("int8 (static ranges): 1,234 queries in the old model's gallery; ")
    assert "0.9900 on average, 0.9000 at worst; 1.50 times the speed" in lines[1]
    assert " ".join(lines[2].split()) == (
        "top-1 exact 50.00 % int8 49.00 % -1.00 points (-2.00 to +0.00)"
    )
