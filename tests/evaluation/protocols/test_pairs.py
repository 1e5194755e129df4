import json
import pickle

import numpy as np
import pytest

from tests.conftest import run_command
from unibct.data.decoding import encode_png
from unibct.data.readers.table import open_images
from unibct.errors import UserError
from unibct.evaluation.protocols.pairs import evaluate_pair_set, evaluate_pairs
from unibct.evaluation.protocols.request import EvaluationRequest


def test_pair_sets(faces_root, tmp_path, capsys):
    images = open_images("glyphs:val")
    rng = np.random.default_rng(0)
    pairs, same = [], []
    for number in range(20):
        first = rng.integers(len(images))
        wanted = number % 2 == 0
        others = np.flatnonzero((images.labels == images.labels[first]) == wanted)
        second = rng.choice(others[others != first])
        pairs += [encode_png(images.read(images.ids[int(i)])) for i in (first, second)]
        same.append(wanted)
    path = tmp_path / "lfw.bin"
    path.write_bytes(pickle.dumps((pairs, same), 2))
    found = evaluate_pair_set(EvaluationRequest(str(path), faces_root / "new", faces_root / "old"))
    assert set(found.tests) == {"old→old", "new→old", "old→new", "new→new"}
    assert (
        run_command(
            "evaluate",
            path,
            "--query",
            faces_root / "new",
            "--gallery",
            faces_root / "old",
            "--json",
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == found.as_json()


def test_pair_evaluation_by_hand():
    rng = np.random.default_rng(0)
    same = np.arange(40) % 2 == 0
    first = rng.normal(size=(40, 16))
    second = np.where(same[:, None], first, rng.normal(size=(40, 16)))
    new = np.stack([first, second], axis=1).reshape(80, 16)
    noise = np.repeat(rng.normal(size=(40, 2, 16)) * 2, 1, axis=0).reshape(80, 16)
    found = evaluate_pairs(new + noise, new, same)
    assert found.tests["new→new"].mean == 1
    cross = (found.tests["new→old"].mean + found.tests["old→new"].mean) / 2
    assert found.criteria[0].cross == pytest.approx(cross)
    assert found.criteria[0].old_self == pytest.approx(found.tests["old→old"].mean)
    assert found.criteria[0].low <= found.criteria[0].difference <= found.criteria[0].high
    with pytest.raises(UserError, match="new has 78 embeddings for 40 pairs"):
        evaluate_pairs(new, new[:78], same)
