import pytest
import torch

from unibct.benchmark.forecast import trial_rate
from unibct.training.precision import autocast, slow_precision_note
from unibct.training.recipe import load_recipe


def test_the_forward_pass_has_the_recipe_s_precision():
    weights, rows = torch.ones(4, 4), torch.ones(2, 4)
    for precision in ("float32", "bfloat16"):
        with autocast(precision, torch.device("cpu")):
            assert (rows @ weights).dtype == getattr(torch, precision)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_a_processor_that_only_imitates_a_format_is_named(monkeypatch, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    note = slow_precision_note("bfloat16", torch.device("cpu"))
    if capability == "AVX2":
        assert note is not None
        assert "no instructions for bfloat16" in note
        assert "precision=float32" in note
    else:
        assert note is None
    assert slow_precision_note("float32", torch.device("cpu")) is None
    assert slow_precision_note("bfloat16", torch.device("cuda")) is None


def test_a_trial_of_the_speed_has_the_recipe_s_precision(monkeypatch):
    formats: list[str] = []

    def recorded(precision: str, device: torch.device):
        formats.append(precision)
        return autocast(precision, device)

    monkeypatch.setattr("unibct.benchmark.forecast.autocast", recorded)
    recipe = load_recipe("glyphs", ["batch_size=2", "precision=bfloat16"])
    assert trial_rate(recipe, 4, 1, torch.device("cpu"), steps=6) > 0
    assert set(formats) == {"bfloat16"}
