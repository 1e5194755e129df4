import subprocess
import sys
import textwrap

import pytest

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
