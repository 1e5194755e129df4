import json

from tests.conftest import run_command
from unibct.data.readers.table import open_images


def test_split_writes_two_disjoint_lists(trained_folder, photo_folder):
    old = (trained_folder / "split/old.txt").read_text().splitlines()
    new = (trained_folder / "split/new.txt").read_text().splitlines()
    assert sorted(old + new) == list(open_images(str(photo_folder)).ids)
    assert len({name.split("/")[0] for name in old}) == 3
    described = json.loads((trained_folder / "split/split.json").read_text())
    assert described["scenario"] == "open-class"
    assert described["counts"]["old"] == {"images": len(old), "classes": 3}


def test_convert_says_what_it_wrote(photo_folder, tmp_path, capsys):
    out = tmp_path / "records"
    assert run_command("convert", photo_folder, "--to", "recordio", "--out", out) == 0
    images = open_images(out)
    assert images.class_names == open_images(photo_folder).class_names
    assert capsys.readouterr().out == f"{out}: {len(images):,} images as recordio\n"
