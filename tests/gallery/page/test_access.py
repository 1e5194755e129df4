import re

import pytest

from tests.gallery.page.conftest import png
from unibct.errors import UserError
from unibct.gallery.page.access import SECURITY_HEADERS, chosen_token, is_loopback

TOKEN = "a token of some length"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("192.168.1.4", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_which_names_mean_this_machine(host, is_here):
    assert is_loopback(host) == is_here


def test_a_token_is_made_if_others_can_reach_the_server():
    assert chosen_token("127.0.0.1", None) is None
    made = {chosen_token("0.0.0.0", None) for _ in range(3)}
    assert len(made) == 3
    assert all(len(token) == 32 for token in made if token)
    assert chosen_token("127.0.0.1", TOKEN) == TOKEN
    with pytest.raises(UserError, match="at least 16 characters"):
        chosen_token("0.0.0.0", "secret")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8765", "", "a:b:c", "["])
def test_another_name_of_the_host_is_refused(toy_gallery, make_client, host):
    client = make_client(toy_gallery.folder.path)
    for path in ("/", "/api/status", "/static/page.js", "/openapi.json"):
        assert client.get(path, headers={"Host": host}).status_code == 403
    for good in ("localhost:9", "127.0.0.1", "[::1]:8765"):
        assert client.get("/api/status", headers={"Host": good}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:8765"}, 200),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_requests_that_other_pages_send_are_refused(toy_gallery, make_client, headers, code):
    client = make_client(toy_gallery.folder.path)
    answer = client.post("/api/search", content=png(), headers=headers)
    assert answer.status_code == code
    if "Sec-Fetch-Site" in headers:  # other pages cannot load pictures either
        assert client.get("/api/status", headers=headers).status_code == code


def test_every_answer_has_the_headers_that_protect_the_page(toy_gallery, make_client):
    client = make_client(toy_gallery.folder.path)
    for path in ("/", "/static/page.css", "/api/status", "/nowhere", "/api/image/x"):
        headers = client.get(path).headers
        assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert "unsafe" not in SECURITY_HEADERS["Content-Security-Policy"]
    assert client.get("/api/status").headers["cache-control"] == "no-store"


def test_the_token_opens_the_page(toy_gallery, make_client):
    client = make_client(toy_gallery.folder.path, token=TOKEN)
    anywhere = {"Host": "gallery.example"}
    assert client.get("/static/page.css", headers=anywhere).status_code == 200
    for path in (
        "/",
        "/api/status",
        "/openapi.json",
        "/?token=wrong",
        f"/api/status?token={TOKEN}",
    ):
        refused = client.get(path, headers=anywhere)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in refused.text
        assert "set-cookie" not in refused.headers
    for bearer in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
        assert client.get("/api/status", headers={"Authorization": bearer}).status_code == 200
    for bearer in ("Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN):
        assert client.get("/api/status", headers={"Authorization": bearer}).status_code == 401


def test_a_browser_shows_the_token_once_and_then_a_cookie(toy_gallery, make_client):
    client = make_client(toy_gallery.folder.path, token=TOKEN)
    opened = client.get("/", params={"token": TOKEN})
    assert opened.status_code == 200
    cookie = opened.headers["set-cookie"]
    assert re.fullmatch(r"unibct_8765=[0-9a-f]{64}; HttpOnly; SameSite=Strict; Path=/", cookie)
    assert TOKEN not in opened.text + cookie
    assert client.get("/api/status").status_code == 200
    client.cookies.clear()
    assert client.get("/api/status", headers={"Cookie": "unibct_8765=0"}).status_code == 401
