import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.rollback import unsearchable_rows


def test_there_must_be_something_to_go_back_from(toy_gallery):
    with pytest.raises(UserError, match="no upgrade and no backfill"):
        toy_gallery.rollback()


def test_any_upgrade_or_backfill_can_be_the_target(upgraded):
    upgraded.backfill(toy_images(), share=0.25)
    upgraded.backfill(toy_images(), share=0.5)
    with pytest.raises(UserError, match=r"choose one of: 3 \(upgrade\), 4 \(backfill\), 5"):
        upgraded.rollback(2)
    upgraded.rollback(5)
    assert list(upgraded.status().live.values()) == [36, 12]
    upgraded.rollback(4)
    assert list(upgraded.status().live.values()) == [48, 0]
    upgraded.rollback(3)
    assert upgraded.folder.state.searching.name.endswith("old_model")


def test_the_newest_rows_are_unsearchable_until_they_are_restored(upgraded):
    upgraded.add(toy_images(per_class=1, first=30))
    upgraded.rollback()
    assert len(unsearchable_rows(upgraded.folder)) == 6
    assert upgraded.add(toy_images(per_class=1, first=30)).added == 6
    assert unsearchable_rows(upgraded.folder) == []
