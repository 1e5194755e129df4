"""Deleting a gallery: its rows on the engine's server, and its folder."""

import shutil

from unibct.gallery.folder import LOCK_FILE, GalleryFolder
from unibct.gallery.state import STATE_FILE


def delete_gallery(folder: GalleryFolder) -> None:
    """Delete a gallery for good.

    The rows go first and the state last: a deletion that was killed can be repeated. If the
    server cannot be reached, nothing is deleted. Galleries that ``copy`` has made from this one
    stay as they are.
    """
    real = folder.path.resolve()  # it may be a link, or the current folder
    with folder.writing():
        folder.engine.destroy()
        folder.close()
        for path in folder.path.iterdir():
            if path.name in (STATE_FILE, LOCK_FILE):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder.path / STATE_FILE).unlink()
    shutil.rmtree(real)
    if folder.path.is_symlink():
        folder.path.unlink()
