import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.gallery.page.conftest import ended, png
from tests.gallery.toys import toy_images
from unibct.data.decoding import encode_png


def test_the_page_loads_only_from_here(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    files = re.findall(r'(?:src|href)="([^"#][^"]*)"', page.text)
    assert len(files) >= 3
    for file in files:
        assert file.startswith("/")
        assert client.get(file).status_code == 200
    assert not re.findall(r"\son\w+=|<style|style=|<script(?! type=\"module\" src)", page.text)
    script = client.get("/static/page.js").text
    for name in re.findall(r'from "\./(\w+\.js)"', script):
        assert "innerHTML" not in client.get(f"/static/{name}").text


def test_an_image_that_is_searched_with_is_not_kept(client, upgraded):
    def files():
        paths = [path for path in upgraded.folder.path.rglob("*.*") if path.is_file()]
        return {path: path.read_bytes() for path in paths if "sqlite-" not in path.name}

    before = files()
    assert client.post("/api/search", content=png("c1/60")).status_code == 200
    assert files() == before


def test_search_with_bytes_and_with_an_image_of_the_set(client):
    answer = client.post("/api/search", params={"k": 3}, content=png("c1/60")).json()
    assert [column["role"] for column in answer["columns"]] == ["before", "now"]
    for column in answer["columns"]:
        assert [hit["label"] for hit in column["hits"]] == ["c1"] * 3
    assert answer["query_id"] is None
    named = client.post("/api/search", params={"k": 1, "image_id": "c2/3"}).json()
    assert named["query_label"] == "c2"
    assert named["columns"][0]["hits"][0]["id"] == "c2/3"


@pytest.mark.parametrize(
    ("parameters", "content", "code", "detail"),
    [
        ({}, b"", 400, "the file is empty"),
        ({}, b"GIF89a", 400, "not a PNG, JPEG or WebP image"),
        ({"k": 0}, png(), 422, "k: Input should be greater than or equal to 1"),
        ({"k": 101}, png(), 422, "k: Input should be less than or equal to 100"),
        ({"far": 0.3}, png(), 400, "no threshold for the false accept rate 0.3"),
        ({"far": 0.1, "threshold": 0.3}, png(), 400, "a threshold or a false accept rate"),
        ({"where": "colour"}, png(), 400, "write KEY=VALUE"),
        ({"encoders": "three"}, png(), 400, "unknown encoders 'three'"),
        ({"treshold": 0.9}, png(), 422, "treshold: there is no such parameter; it has alpha,"),
        ({"image_id": "../state.json"}, b"", 404, "'../state.json' is not an image of toys"),
    ],
    ids=lambda value: None if not isinstance(value, bytes) else f"{len(value)} bytes",
)
def test_a_search_that_is_wrong(client, parameters, content, code, detail):
    answer = client.post("/api/search", params=parameters, content=content)
    assert answer.status_code == code
    assert detail in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_an_image_with_too_many_pixels(client):
    image = encode_png(np.zeros((9000, 9000), dtype=np.uint8))
    answer = client.post("/api/search", content=image)
    assert answer.status_code == 413
    assert answer.json()["detail"] == "9000×9000 pixels are more than 50,000,000"


def test_pictures_of_the_set_and_of_nothing_else(client, upgraded):
    answer = client.get("/api/image/c3%2F2")
    assert answer.headers["content-type"] == "image/png"
    picture = np.asarray(Image.open(io.BytesIO(answer.content)))
    np.testing.assert_array_equal(picture, toy_images().read("c3/2"))
    assert client.get("/api/image/c3/2").content == answer.content
    state = upgraded.folder.path / "state.json"
    for path in (state, "..%2F..%2Fstate.json", "%2e%2e/state.json", "c3", "", "%00"):
        for folder in ("/api/image/", "/static/", "/static/..%2F"):
            assert client.get(f"{folder}{path}").status_code == 404


def test_large_images_become_small_pictures(toy_gallery, make_client):
    images = toy_images(classes=1, per_class=1)
    large = np.zeros((400, 800, 3), dtype=np.uint8)
    object.__setattr__(images, "read", lambda image_id: large)
    answer = make_client(toy_gallery.folder.path, images).get("/api/image/c0/0")
    assert Image.open(io.BytesIO(answer.content)).size == (192, 96)


def test_the_story_from_backfill_to_rollback(client):
    status = client.get("/api/status").json()
    assert [kind["rows"] for kind in status["kinds"]] == [48, 0]
    begun = client.post("/api/backfill", json={"share": 0.5})
    assert begun.status_code == 202
    assert begun.json()["action"] == "backfill"
    status = ended(client)
    assert (status["job"]["state"], status["job"]["done"]) == ("done", 24)
    assert [kind["rows"] for kind in status["kinds"]] == [24, 24]
    paused = client.post("/api/backfill/pause")
    assert (paused.status_code, paused.json()["detail"]) == (409, "no backfill is under way")
    assert client.post("/api/rollback", json={"to": 1}).status_code == 409
    assert client.post("/api/rollback").status_code == 202
    status = ended(client)
    assert status["previous"] is None
    assert [kind["rows"] for kind in status["kinds"]] == [48, 0]
    again = client.post("/api/rollback")
    assert again.status_code == 409
    assert again.json()["detail"] == "there is no upgrade and no backfill to go back from"


def test_a_share_that_is_none(client):
    for share in (0, 1.5, "half"):
        answer = client.post("/api/backfill", json={"share": share})
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("share: Input should be")


def test_a_misspelt_change_changes_nothing(client):
    steps = client.get("/api/status").json()["steps"]
    refused = [
        client.post("/api/backfill", json={"sahre": 0.5}),
        client.post("/api/backfill", params={"share": 0.5}),
        client.post("/api/backfill/pause", params={"now": 1}),
        client.post("/api/rollback", json={"step": 3}),
    ]
    assert [(answer.status_code, answer.json()["detail"]) for answer in refused] == [
        (422, "sahre: there is no such field; /openapi.json has them"),
        (422, "share: there is no such parameter; it has none"),
        (422, "now: there is no such parameter; it has none"),
        (422, "step: there is no such field; /openapi.json has them"),
    ]
    after = client.get("/api/status").json()
    assert after["steps"] == steps
    assert after["job"] is None


def test_an_image_sent_as_a_form(client):
    answer = client.post("/api/search", files={"image": png()})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("send the bytes of the image as the body, not a form")


def test_without_images(upgraded, make_client):
    client = make_client(upgraded.folder.path)
    assert not client.get("/api/status").json()["has_images"]
    assert client.get("/api/samples").json() == {"samples": []}
    assert client.get("/api/image/c1/1").status_code == 404
    assert 'id="samples"' not in client.get("/").text
    assert client.post("/api/backfill").status_code == 409


def test_the_certificate_in_force(client, upgraded):
    (certificate,) = client.get("/api/certificate").json()["certificates"]
    assert certificate["verdict"] == "compatible"
    assert certificate["digest"] == upgraded.folder.certificates()[0].digest
    assert certificate["rows_of"]["short_name"] == "old_model"


def test_the_interface_is_described(client):
    described = client.get("/openapi.json").json()
    paths = "status certificate samples image/{image_id} search backfill backfill/pause rollback"
    assert set(described["paths"]) == {f"/api/{path}" for path in paths.split()}
    search = described["paths"]["/api/search"]["post"]
    assert set(search["requestBody"]["content"]) == {"image/png", "image/jpeg", "image/webp"}
    error = {"$ref": "#/components/schemas/ErrorAnswer"}
    for path in described["paths"].values():
        for operation in path.values():
            refusal = operation["responses"]["429"]["content"]["application/json"]
            assert refusal["schema"] == error
    assert "http" not in json.dumps(described["info"])
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


def test_what_nobody_expected_is_one_line_too(client, monkeypatch, caplog):
    from unibct.gallery.page.shown_gallery import ShownGallery

    def break_down(*_):
        raise RuntimeError("secret path")

    monkeypatch.setattr(ShownGallery, "status", break_down)
    client._transport.raise_server_exceptions = False
    answer = client.get("/api/status")
    assert answer.status_code == 500
    assert answer.json() == {"detail": "unexpected: RuntimeError; the server's log says more"}
    assert "secret path" in caplog.text


def test_a_server_answers_nothing_from_a_gallery_that_was_deleted(client, upgraded):
    assert client.post("/api/search", content=png()).status_code == 200
    (upgraded.folder.path / "rows.sqlite").unlink()
    for answer in (client.post("/api/search", content=png()), client.get("/api/status")):
        assert answer.status_code == 400
        assert "rows.sqlite is not there: the rows of this gallery" in answer.json()["detail"]
    shutil.rmtree(upgraded.folder.path)
    for answer in (client.post("/api/search", content=png()), client.get("/api/certificate")):
        assert answer.status_code == 400
        assert "is no longer the gallery that was opened" in answer.json()["detail"]
