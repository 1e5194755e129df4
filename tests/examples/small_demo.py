"""A small demo that was run once, for the tests of the demo, its page and its command."""

import pytest

from tests.conftest import TINY
from unibct.examples.demo import DemoPlan, plan_demo, run_demo
from unibct.training.recipe import load_recipe


@pytest.fixture(scope="session")
def small_demo_plan():
    """The demo on a few classes with few epochs."""
    plan = plan_demo("extended-data", "unibct", seed=0, part="val")
    tiny = load_recipe("glyphs", TINY)
    return DemoPlan(
        plan.scenario,
        plan.method,
        plan.old_images.select((plan.old_images.labels < 12).nonzero()[0]),
        plan.new_images.select((plan.new_images.labels < 12).nonzero()[0]),
        plan.test_images.select((plan.test_images.labels < 15).nonzero()[0]),
        tiny,
        tiny.updated(seed=1),
        plan.gallery_images.select((plan.gallery_images.labels < 15).nonzero()[0]),
    )


@pytest.fixture(scope="session")
def small_demo(small_demo_plan, tmp_path_factory):
    """The result of the small demo, and its folder."""
    out = tmp_path_factory.mktemp("demo")
    return run_demo(small_demo_plan, out, device="cpu"), out
