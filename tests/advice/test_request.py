from pathlib import Path

import pytest

from unibct.advice.request import AdviceRequest
from unibct.errors import UserError


def test_the_old_set_may_be_a_list_of_the_new_data(upgrade):
    def opened(**sets):
        return AdviceRequest(upgrade.model, upgrade.data, **sets).open_old_set()

    assert opened() is None
    assert opened(old_images=upgrade.old_list).ids == upgrade.old_images.ids
    assert len(opened(old_data="glyphs:val")) > 1000


@pytest.mark.parametrize(("text", "rows"), [("12", 12), ("2,000,000", 2_000_000), (None, None)])
def test_a_gallery_may_be_a_number(text, rows):
    assert AdviceRequest(Path("m"), "d", gallery=text).open_gallery() == rows


def test_a_gallery_may_be_images_and_is_not_empty(upgrade):
    gallery = AdviceRequest(Path("m"), "d", gallery=upgrade.data).open_gallery()
    assert not isinstance(gallery, int)
    assert gallery is not None
    assert len(gallery) == 144
    with pytest.raises(UserError, match="--gallery 0: a gallery has at least one row"):
        AdviceRequest(Path("m"), "d", gallery="0").open_gallery()
    with pytest.raises(UserError, match="nowhere is not there"):
        AdviceRequest(Path("m"), "d", gallery="nowhere").open_gallery()
