import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from filelock import FileLock

from tests.data.example_images import jpeg, png
from tests.notes import Notes
from unibct import progress
from unibct.data.convert import convert, resumable_folder
from unibct.data.decoding import image_suffix
from unibct.data.readers import open_images
from unibct.data.readers.recordio import RecordFile, read_index
from unibct.errors import UserError
from unibct.files import write_json


def write(path, numbers, *, fingerprint="a", stop=None, saves=()):
    """Append numbers to a file of the folder, as a job would; return its messages."""
    notes = Notes()
    with progress.shown(notes), resumable_folder(path, fingerprint) as folder:
        file = folder.grow("data/numbers.txt")
        for number in numbers[folder.done :]:
            if number == stop:
                raise KeyboardInterrupt
            file.write(f"{number}\n".encode())
            if number in saves:
                folder.save(numbers.index(number) + 1)
    return notes.texts


AGAIN = "what an earlier run has read may have changed since: starting again"


@pytest.mark.parametrize(
    ("saves", "change", "expected"),
    [
        ((), {}, []),
        ((2,), {}, ["going on after 3 images of an earlier run"]),
        ((2, 5), {}, ["going on after 6 images of an earlier run"]),
        ((2,), {"fingerprint": "b"}, [AGAIN]),
        ((2,), {"fingerprint": None}, [AGAIN]),
        ((2,), {"truncated": True}, [AGAIN]),
    ],
)
def test_a_run_continues_where_the_last_one_saved(saves, change, expected, tmp_path):
    path, before = tmp_path / "out", list(range(9))
    after = [n + 20 for n in before] if expected == [AGAIN] else before
    with pytest.raises(KeyboardInterrupt):
        write(path, before, stop=7, saves=saves)
    assert not path.exists()
    if change.pop("truncated", False):
        (tmp_path / ".out.partial" / "data" / "numbers.txt").write_bytes(b"0\n")
    assert write(path, after, **change) == expected
    assert (path / "numbers.txt").read_text() == "".join(f"{n}\n" for n in after)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_user_error_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="bad input"), resumable_folder(out, "a") as folder:
        folder.grow("data/numbers.txt").write(b"1\n")
        folder.save(1)
        raise UserError("bad input")
    assert list(tmp_path.iterdir()) == []


def test_refused_folders(photo_folder, tmp_path, monkeypatch):
    images = open_images(photo_folder)
    for folder in ("full/deep", ".out.partial", "here"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with FileLock(tmp_path / ".out.partial" / "lock"):
        for name, match in {
            "full": "exists already", "out": "another process is writing", "here": "current folder",
        }.items():  # fmt: skip
            with pytest.raises(UserError, match=match):
                convert(images, tmp_path / name, to="recordio")


def test_packing_and_unpacking_keeps_every_byte(photo_folder, tmp_path):
    source = open_images(photo_folder)
    assert convert(source, tmp_path / "rec", to="recordio") == len(source)
    packed = open_images(tmp_path / "rec")
    assert packed.class_names == source.class_names
    assert (packed.labels == source.labels).all()
    assert [packed.encoded(i) for i in packed.ids] == [source.encoded(i) for i in source.ids]
    convert(packed, tmp_path / "folder", to="folder")
    again = open_images(tmp_path / "folder")
    assert again.class_names == source.class_names

    def contents(images):
        rows = zip(images.ids, images.labels, strict=True)
        return sorted((int(label), images.encoded(i)) for i, label in rows)

    assert contents(again) == contents(source)
    for path in (tmp_path / "rec").iterdir():
        assert path.stat().st_mode & 0o444 == 0o444
    keys, offsets = read_index(tmp_path / "rec" / "train.idx")
    file = RecordFile(tmp_path / "rec" / "train.rec")
    head = file.record(int(offsets[0]))  # key 0: the range of the identities' keys
    first, end = head.labels.astype(int)
    assert (first, end) == (len(source) + 1, len(source) + 1 + len(source.class_names))
    at = dict(zip(keys.tolist(), offsets.tolist(), strict=True))
    for identity in range(len(source.class_names)):
        begin, stop = file.record(at[first + identity]).labels.astype(int)
        for key in range(begin, stop):
            assert file.record(at[key]).labels[0] == identity
    assert (tmp_path / "rec" / "property").read_text().startswith(f"{len(source.class_names)},")


def test_the_embedded_set_is_packed_as_png(glyph_classes, tmp_path):
    convert(glyph_classes, tmp_path / "rec", to="recordio")
    packed = open_images(tmp_path / "rec")
    for own, other in zip(glyph_classes.ids[:30], packed.ids[:30], strict=True):
        assert np.array_equal(packed.read(other), glyph_classes.read(own))


def test_what_cannot_be_converted_is_named_and_nothing_is_left(photo_folder, tmp_path):
    root = tmp_path / "photos"
    shutil.copytree(photo_folder, root)
    bad = min(root.rglob("*.png"))
    bad.write_bytes(b"no image")
    images = open_images(root)
    with pytest.raises(UserError, match=f"{bad.name}.*skip_bad"):
        convert(images, tmp_path / "rec", to="recordio")
    assert not (tmp_path / "rec").exists()
    images = replace(images, skip_bad=True)
    assert convert(images, tmp_path / "rec", to="recordio") == len(images) - 1
    with pytest.raises(UserError, match="unknown layout 'zip'; choose one of recordio, folder"):
        convert(images, tmp_path / "x", to="zip")


def test_a_first_image_that_cannot_be_decoded_stops_nothing(tmp_path):
    folder = tmp_path / "photos" / "one"
    folder.mkdir(parents=True)
    for name, data in (("a.jpg", jpeg(1)[:200]), ("b.jpg", jpeg(2, 20)), ("c.jpg", jpeg(3))):
        (folder / name).write_bytes(data)
    assert convert(open_images(folder.parent), tmp_path / "rec", to="recordio") == 3
    assert (tmp_path / "rec" / "property").read_text() == "1,20,20"


def test_more_images_than_exact_keys_are_refused_at_once(photo_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("unibct.data.convert._LARGEST_EXACT", 100)
    monkeypatch.setattr("unibct.data.convert.image_suffix", lambda _: pytest.fail("has begun"))
    with pytest.raises(UserError, match="above 100 the layout's float keys"):
        convert(open_images(photo_folder), tmp_path / "rec", to="recordio")


def test_names_that_lead_upwards_become_no_hidden_files(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "lists").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(jpeg(1))
    (tmp_path / "lists" / "l.txt").write_text("../images/a.jpg one\n")
    convert(open_images(tmp_path / "lists" / "l.txt"), tmp_path / "out", to="folder")
    assert open_images(tmp_path / "out").ids == ("one/_images_a.jpg",)


@pytest.fixture(scope="module")
def damaged_photos(photo_folder, tmp_path_factory):
    """The photos, and some files that are none: first, last, and between."""
    root = tmp_path_factory.mktemp("damaged") / "photos"
    shutil.copytree(photo_folder, root)
    paths = sorted(root.rglob("*.*"))
    for number in (0, 9, 40, 41, len(paths) - 1):
        paths[number].write_bytes(b"no image")
    return root


def converted(images, out, to):
    """How many images a run has converted, and its messages."""
    notes = Notes()
    with progress.shown(notes):
        return convert(images, out, to=to), notes.texts


def files_of(folder):
    paths = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


@pytest.mark.parametrize("to", ["recordio", "folder"])
def test_an_interrupted_conversion_goes_on(to, damaged_photos, tmp_path, monkeypatch):
    images = open_images(damaged_photos, skip_bad=True)
    convert(images, tmp_path / "whole", to=to)
    whole = files_of(tmp_path / "whole")
    monkeypatch.setattr("unibct.data.convert._SAVE_EVERY", 7)
    seen = []

    def stop_after(count):
        def looked_at(data):
            seen.append(data)
            if len(seen) > count:
                raise KeyboardInterrupt
            return image_suffix(data)

        seen.clear()
        monkeypatch.setattr("unibct.data.convert.image_suffix", looked_at)

    out = tmp_path / "out"
    for count in (3, 10, 33, 41, 0, 60):  # after 0, 7, 35, 70, 70 and 126 images in all
        stop_after(count)
        with pytest.raises(KeyboardInterrupt):
            convert(images, out, to=to)
        assert not out.exists()
    stop_after(len(images))
    count, texts = converted(images, out, to)
    assert count == len(images) - 5
    assert len(seen) == len(images) - 126
    assert texts[0] == "going on after 126 images of an earlier run"
    assert texts[1].startswith("left out 5 unreadable images: class 00/0000.png (not a")
    assert files_of(out) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


@pytest.mark.parametrize("to", ["recordio", "folder"])
def test_a_conversion_with_bad_images_goes_on_without_them(
    to, damaged_photos, tmp_path, monkeypatch
):
    images = open_images(damaged_photos, skip_bad=True)
    convert(images, tmp_path / "whole", to=to)
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"has 5 unreadable images.*skip_bad"):
        convert(replace(images, skip_bad=False), out, to=to)
    assert not out.exists()
    with monkeypatch.context() as patch:
        patch.setattr("unibct.data.convert.image_suffix", lambda _: pytest.fail("is read again"))
        _, texts = converted(images, out, to)
    assert texts[0] == f"going on after {len(images)} images of an earlier run"
    assert texts[1].startswith("left out 5 unreadable images")
    assert files_of(out) == files_of(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


def test_an_image_that_could_not_be_read_is_read_again(photo_folder, tmp_path, monkeypatch):
    images, out = open_images(photo_folder), tmp_path / "out"
    bad = min(photo_folder.rglob("*.*"))

    def refused(path):
        if path == bad:
            raise PermissionError(13, "Permission denied")
        with path.open("rb") as file:
            return file.read()

    with monkeypatch.context() as patch, pytest.raises(UserError, match="Permission denied"):
        patch.setattr("pathlib.Path.read_bytes", refused)
        convert(images, out, to="folder")
    assert convert(images, out, to="folder") == len(images)


def test_a_repaired_image_is_read_again(damaged_photos, photo_folder, tmp_path):
    root, out = tmp_path / "photos", tmp_path / "out"
    shutil.copytree(damaged_photos, root)
    with pytest.raises(UserError, match="has 5 unreadable images"):
        convert(open_images(root), out, to="folder")
    shutil.copytree(photo_folder, root, dirs_exist_ok=True)
    convert(open_images(root), out, to="folder")
    assert files_of(out) == files_of(photo_folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "photos"]


def interrupted(images, out, monkeypatch, saved=5, after=20):
    count = iter(range(after))
    with monkeypatch.context() as patch, pytest.raises(StopIteration):
        patch.setattr("unibct.data.convert._SAVE_EVERY", saved)
        patch.setattr(
            "unibct.data.convert.image_suffix", lambda data: (next(count), image_suffix(data))[1]
        )
        convert(images, out, to="recordio")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["source", "layout", "partial"])
def test_a_conversion_of_something_else_starts_again(change, photo_folder, tmp_path, monkeypatch):
    root = tmp_path / "photos"
    shutil.copytree(photo_folder, root)
    out = tmp_path / "out"
    interrupted(open_images(root), out, monkeypatch)
    to = "folder" if change == "layout" else "recordio"
    if change == "source":
        first = min(root.rglob("*.png"))
        first.write_bytes(png(7))  # the same name, other bytes
    if change == "partial":
        (tmp_path / ".out.partial" / "data" / "train.rec").write_bytes(b"short")
    assert converted(open_images(root), out, to)[1] == [AGAIN]
    convert(open_images(root), tmp_path / "whole", to=to)
    assert files_of(out) == files_of(tmp_path / "whole")


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from unibct.data import convert
from unibct.data.decoding import image_suffix
from unibct.data.readers import open_images

name, calls = sys.argv[4:]
real, left = getattr(convert, name), int(calls)

def killed(*arguments):
    global left
    left -= 1
    if left < 0:
        if name == "write_record":  # within a record
            arguments[0].write(arguments[1][:30])
            arguments[0].flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(convert, name, killed)
convert._SAVE_EVERY = 7
convert.convert(open_images(sys.argv[1], skip_bad=True), Path(sys.argv[2]), to=sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "places"),
    [
        ("recordio", "write_record 0, write_record 40, write_record 60, _first_image_size 0"),
        ("recordio", "write_json 0, write_json 5, image_suffix 99, atomic_folder 0"),
        ("folder", "image_suffix 30, image_suffix 90, write_json 3, atomic_folder 0"),
    ],
)
def test_a_killed_conversion_goes_on_to_the_byte(to, places, damaged_photos, tmp_path):
    images = open_images(damaged_photos, skip_bad=True)
    convert(images, tmp_path / "whole", to=to)
    out = tmp_path / "out"
    for place in places.split(", "):
        name, calls = place.split()
        arguments = [damaged_photos, out, to, name, calls]
        command = [sys.executable, "-c", KILLED_AT, *map(str, arguments)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert not out.exists()
    assert converted(images, out, to)[1][0].startswith("going on after ")
    assert files_of(out) == files_of(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


def test_class_numbers_of_a_file_without_names_stay_those_of_that_file(tmp_path, photo_folder):
    photos = open_images(str(photo_folder))
    convert(photos, tmp_path / "a", to="recordio")
    (tmp_path / "a/classes.txt").unlink()
    numbered = open_images(tmp_path / "a")
    some = numbered.select(np.flatnonzero(numbered.labels >= 5))
    convert(some, tmp_path / "b", to="recordio")
    assert open_images(tmp_path / "b").class_identities == numbered.class_identities[5:]
    convert(photos, tmp_path / "c", to="recordio")
    assert open_images(tmp_path / "c").class_names == photos.class_names
    convert(some, tmp_path / "d", to="folder")
    unpacked = open_images(tmp_path / "d")
    assert set(unpacked.class_identities) == set(numbered.class_identities[5:])
    assert unpacked.class_source == numbered.class_source
    convert(unpacked, tmp_path / "e", to="folder")
    assert open_images(tmp_path / "e").ids == unpacked.ids
    assert len(unpacked) == len(some)


def test_no_image_counts_as_done_before_it_is_on_the_disk(photo_folder, tmp_path, monkeypatch):
    images = open_images(photo_folder)
    synced, saved, real_sync = set(), [], os.fsync
    partial = tmp_path / ".out.partial" / "data"

    def fsync(handle):
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real_sync(handle)

    def save(path, value):
        names = (partial.parent / "names.txt").read_text().splitlines()
        assert len(names) == value["done"]
        saved.append(value["done"])
        for name in names:
            assert str(partial / name) in synced
            assert str((partial / name).parent) in synced
        write_json(path, value)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr("unibct.data.convert.write_json", save)
    monkeypatch.setattr("unibct.data.convert._SAVE_EVERY", 50)
    convert(images, tmp_path / "out", to="folder")
    assert saved[:2] == [50, 100]
    names = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert len(names) == len(images)
    for path in names:  # the last ones were not counted, but the folder is complete
        assert str(partial / path.relative_to(tmp_path / "out")) in synced
