import subprocess
import sys
import textwrap

import pytest

from tests.gallery.toys import toy_images
from unibct.gallery.folder import GalleryBusyError
from unibct.gallery.gallery import Gallery


def test_two_writers_are_refused_and_readers_go_on(toy_gallery):
    other = Gallery(toy_gallery.folder.path)
    with toy_gallery.folder.writing():
        with (
            pytest.raises(GalleryBusyError, match="another process is writing"),
            other.folder.writing(),
        ):
            pass
        assert other.status().as_json()["rows"] == 48
    with other.folder.writing():
        pass


def test_the_state_is_read_again_when_another_object_replaced_it(toy_gallery):
    other = Gallery(toy_gallery.folder.path)
    steps = len(other.folder.state.steps)
    toy_gallery.folder.save(toy_gallery.folder.state.begun("add").changed_step(3, done=True))
    assert len(other.folder.state.steps) == steps + 1


def test_whether_a_kind_has_rows_is_asked_as_rarely_as_is_safe(upgraded, monkeypatch):
    folder = upgraded.folder
    old, new = folder.state.makers
    asked = []
    has_live = folder.engine.has_live
    monkeypatch.setattr(
        folder.engine, "has_live", lambda kind: asked.append(kind) or has_live(kind)
    )
    for _ in range(3):
        assert (folder.has_live(old), folder.has_live(new)) == (True, False)
    assert asked == [old, new]
    number = folder.save(folder.state.begun("add")).steps[-1].number
    for _ in range(2):  # while rows may come, a no is asked again
        assert (folder.has_live(old), folder.has_live(new)) == (True, False)
    assert asked[2:] == [old, new, new]
    folder.save(folder.state.changed_step(number, done=True))
    upgraded.add(toy_images(per_class=1, first=90))
    assert folder.has_live(new)


@pytest.mark.slow
def test_a_killed_writer_leaves_no_lock(toy_gallery):
    code = f"""
        import os
        from pathlib import Path
        from unibct.gallery.folder import GalleryFolder
        with GalleryFolder(Path({str(toy_gallery.folder.path)!r})).writing():
            os.kill(os.getpid(), 9)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == -9
    with toy_gallery.folder.writing():
        pass
