"""A gallery for tests of its commands."""

import json

import pytest

from tests.conftest import run_command
from tests.gallery.toys import NEW, OLD, toy_certificate, toy_images, written
from unibct.data.decoding import encode_png
from unibct.embedders import open_embedder


def save_images(images, folder):
    for image_id, label in zip(images.ids, images.labels, strict=True):
        path = folder / images.class_names[label] / f"{image_id.split('/')[1]}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(images.read(image_id)))
    return folder


@pytest.fixture
def world(tmp_path, capsys):
    """Images in folders, a certificate, a gallery with rows, and a way to run commands."""
    rows = save_images(toy_images(), tmp_path / "rows")
    queries = save_images(toy_images(per_class=1, first=50), tmp_path / "queries")
    fingerprints = [open_embedder(model).fingerprint for model in (OLD, NEW)]
    certificate = written(toy_certificate(*fingerprints), tmp_path)

    def run(command, *words, code=0):
        assert run_command("gallery", command, tmp_path / "G", *words) == code
        captured = capsys.readouterr()
        return captured.err if code == 2 else captured.out

    run("create", "--model", OLD)
    run("add", rows)
    return run, rows, queries, certificate, fingerprints


def upgrade(certificate):
    """The words of an upgrade to the new model with this certificate."""
    return "upgrade", "--model", NEW, "--certificate", certificate


def parsed(text):
    return json.loads(text)
