import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.embeddings.forms import FORMS, describe_forms, read_embeddings, write_embeddings
from unibct.embeddings.store import NO_CLASS
from unibct.errors import UserError

PLACES = {form: "emb" if form == "folder" else f"emb.{form}" for form in FORMS}


def test_the_help_names_every_form():
    assert describe_forms() == "a folder, .parquet, .npy or .safetensors"
    assert all(form.short in describe_forms() for form in FORMS.values())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_back_to_the_bit(form, tmp_path):
    written = random_embeddings(37, fingerprint="abc")
    write_embeddings(written, tmp_path / PLACES[form], form)
    read = read_embeddings(tmp_path / PLACES[form])
    assert np.array_equal(np.asarray(read.vectors), written.vectors)
    assert read.vectors.dtype == np.float32
    assert read.ids == written.ids
    assert read.fingerprint == "abc"
    names = [[e.class_names[label] for label in e.labels] for e in (read, written)]
    assert names[0] == names[1]


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_without_classes_stay_without(form, tmp_path):
    unlabelled = random_embeddings(5, classes=(), fingerprint="")
    write_embeddings(unlabelled, tmp_path / PLACES[form], form)
    read = read_embeddings(tmp_path / PLACES[form])
    assert read.class_names == ()
    assert read.labels.tolist() == [NO_CLASS] * 5
    assert read.fingerprint == ""


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_overwritten(form, tmp_path):
    write_embeddings(random_embeddings(3), tmp_path / PLACES[form], form)
    with pytest.raises(UserError, match="exists already"):
        write_embeddings(random_embeddings(4), tmp_path / PLACES[form], form)
    assert len(read_embeddings(tmp_path / PLACES[form])) == 3


@pytest.mark.parametrize("form", [name for name in FORMS if name != "folder"])
def test_a_file_needs_the_ending_by_which_it_is_recognised(form, tmp_path):
    with pytest.raises(UserError, match="must end in"):
        write_embeddings(random_embeddings(3), tmp_path / "emb.bin", form)


@pytest.mark.parametrize("form", FORMS)
def test_what_cannot_be_written_is_known_before(form, tmp_path):
    FORMS.find(form).load().require_writable(tmp_path / PLACES[form])
    (tmp_path / PLACES[form]).touch()
    with pytest.raises(UserError, match="exists already"):
        FORMS.find(form).load().require_writable(tmp_path / PLACES[form])


def test_unknown_places_and_forms_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing is not there; embeddings are kept as: a folder"):
        read_embeddings(tmp_path / "nothing")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(UserError, match=r"text\.txt holds no embeddings"):
        read_embeddings(tmp_path / "text.txt")
    with pytest.raises(UserError, match="unknown form 'csv'; choose one of folder, parquet"):
        FORMS.find("csv")


@pytest.mark.parametrize("form", FORMS)
def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path, form):
    path = tmp_path / PLACES[form]
    left, own = tmp_path / f".{path.name}.abcdefgh.tmp", tmp_path / f".{path.name}.mine.tmp"
    for place in (left, own):
        place.write_text("half")
    write_embeddings(random_embeddings(5), path, form)
    assert (left.exists(), own.read_text()) == (False, "half")
    assert len(read_embeddings(path)) == 5
