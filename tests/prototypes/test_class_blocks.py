import tempfile

import numpy as np
import pytest
import torch

from tests.prototypes.class_data import ROW, SIZES, classes_in
from unibct.prototypes import class_blocks
from unibct.prototypes.class_blocks import MemoryLimits, map_classes
from unibct.prototypes.class_prototypes import class_prototypes


@pytest.mark.parametrize("order", ["class", "shuffled"])
def test_blocks_hold_every_row_once_and_no_more_than_the_buffer(order):
    v, x, labels = classes_in(order, SIZES)
    threads, seen = torch.get_num_threads(), []

    def check(block):
        rows = block.parts[0] if block.order is None else block.parts[0][block.order]
        expected = np.concatenate([v[labels == c] for c in block.classes])
        assert np.array_equal(rows, expected)
        assert len(rows) <= 120 or len(block.classes) == 1
        seen.append(block.classes)
        return len(rows)

    done = map_classes(check, [v, x], labels, memory=MemoryLimits(120 * ROW * threads))
    assert sum(done) == len(labels)
    assert sorted(c for classes in seen for c in classes) == list(range(len(SIZES)))
    assert torch.get_num_threads() == threads


def test_rows_in_any_order_are_spilled_when_memory_is_short(tmp_path, monkeypatch):
    folders, real = [], tempfile.TemporaryDirectory

    def watched(*arguments, **options):
        folders.append(options["dir"])
        return real(*arguments, **options)

    monkeypatch.setattr(class_blocks.tempfile, "TemporaryDirectory", watched)
    for order, memory, spills in (
        ("shuffled", 1 << 40, 0),
        ("class", 1000, 0),
        ("shuffled", 1000, 1),
    ):
        v, x, labels = classes_in(order, SIZES)
        monkeypatch.setattr(class_blocks, "_available_memory", lambda memory=memory: memory)
        limits = MemoryLimits(30 * ROW, tmp_path)
        ours = class_prototypes(labels, old=v, new=x, memory=limits)
        assert np.abs(ours - class_prototypes(labels, old=v, new=x)).max() < 1e-6
        assert folders == [tmp_path] * spills
    assert not list(tmp_path.iterdir())
