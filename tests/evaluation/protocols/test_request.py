import dataclasses
from pathlib import Path

import pytest

from unibct.evaluation.protocols.request import EvaluationRequest, PoolingRules


def test_templates_are_pooled_by_the_fields_rules_unless_asked_otherwise():
    request = EvaluationRequest("ijbc/", query=Path("new"), gallery=Path("old"))
    assert request.pooling == PoolingRules(
        flip_test=True, detector_scores=True, media_mean=True, normalize_images=False
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.far = 0.1
