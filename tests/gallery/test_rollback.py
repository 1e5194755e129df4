import pytest

from tests.gallery.toys import NEW, toy_images
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


@pytest.mark.parametrize("again", ["rollback", "add"])
def test_a_row_that_the_earlier_model_makes_again_is_no_second_row(upgraded, again):
    later = toy_images(per_class=1, first=30)
    upgraded.add(later)
    if again == "rollback":
        assert upgraded.rollback(data=later).restored == 6
    else:
        upgraded.rollback()
        assert upgraded.add(later).added == 6
    assert sum(upgraded.status().live.values()) == 54
    upgraded.upgrade(NEW, force=True)
    assert sum(upgraded.status().live.values()) == 54
    images = toy_images()
    ids = [*images.ids, *later.ids]
    for answer in upgraded.search(images, k=60):
        assert sorted(hit.id for hit in answer.hits) == sorted(ids)
    assert upgraded.backfill(later).rows == 6
    upgraded.rollback()
    assert sum(upgraded.status().live.values()) == 54
    assert upgraded.verify() == []
