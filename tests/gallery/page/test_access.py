import asyncio
import re

import numpy as np
import pytest

from tests.gallery.page.conftest import png
from unibct.data.decoding import UnreadableImageError, decode, encode_png
from unibct.errors import UserError
from unibct.gallery.page.access import (
    SECURITY_HEADERS,
    LimitedRequests,
    RateLimit,
    RequestLimits,
    TooLargeError,
    chosen_token,
    decoded_image,
    is_loopback,
)

TOKEN = "a token of some length"


def test_which_names_mean_this_machine():
    for host in ("localhost", "LocalHost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"):
        assert is_loopback(host)
    evil = ("localhost.evil.example", "127.0.0.1.evil.example")
    for host in ("0.0.0.0", "192.168.1.4", *evil, ""):
        assert not is_loopback(host), host


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
    wrong = ("/?token=wrong", f"/api/status?token={TOKEN}")
    for path in ("/", "/api/status", "/openapi.json", *wrong):
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


def test_a_bucket_empties_and_fills_again():
    now = [0.0]
    rate = RateLimit(per_second=2, burst=5, clock=lambda: now[0])
    assert [rate.wait("a") for _ in range(5)] == [0] * 5
    assert rate.wait("a") == 0.5  # one token at two a second
    assert rate.wait("a", cost=3) == 1.5
    assert rate.wait("b") == 0  # another client
    now[0] = 1.0  # two tokens have come back
    assert rate.wait("a", cost=2) == 0
    assert rate.wait("a") == 0.5
    now[0] = 1000.0  # never more than a full bucket
    assert [rate.wait("a") for _ in range(6)] == [0] * 5 + [0.5]


def test_clients_who_went_away_are_forgotten(monkeypatch):
    monkeypatch.setattr("unibct.gallery.page.access._MOST_CLIENTS", 3)
    now = [0.0]
    rate = RateLimit(per_second=1, burst=2, clock=lambda: now[0])
    for client in "abc":
        rate.wait(client)
    now[0] = 5.0
    for client in "defghij":
        assert rate.wait(client) == 0
        assert len(rate._buckets) <= 3


def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch):
    image = encode_png(np.zeros((20, 30), dtype=np.uint8))
    np.testing.assert_array_equal(decoded_image(image, 600), decode(image))
    monkeypatch.setattr("unibct.gallery.page.access.decode", lambda data: pytest.fail("decoded"))
    with pytest.raises(TooLargeError, match="30×20 pixels are more than 599"):
        decoded_image(image, 599)


@pytest.mark.parametrize("data", [b"", b"hello", png()[:60], b"GIF89a" + bytes(30)], ids=len)
def test_what_is_no_image_is_refused(data):
    with pytest.raises(UnreadableImageError):
        decoded_image(data)


def test_requests_that_come_too_often_are_told_when_to_come_again(toy_gallery, make_client):
    limits = RequestLimits(per_second=0.001, burst=12, post_cost=10)
    client = make_client(toy_gallery.folder.path, limits=limits)
    assert client.get("/api/status").status_code == 200
    assert client.post("/api/search", content=png()).status_code == 200
    refused = client.post("/api/search", content=png())
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 1000
    assert refused.json() == {"detail": "too many requests; wait a little"}
    assert "content-security-policy" in refused.headers
    assert client.get("/api/status").status_code == 200
    assert client.get("/api/status").status_code == 429


def test_large_bodies_are_refused(toy_gallery, make_client):
    client = make_client(toy_gallery.folder.path, limits=RequestLimits(image_bytes=5000))
    refused = client.post("/api/search", content=bytes(5001))
    assert refused.status_code == 413
    assert refused.json()["detail"] == "more than 5,000 bytes; send a smaller one"
    assert client.post("/api/search", content=png()).status_code == 200
    assert client.post("/api/backfill", content=bytes(64_001)).status_code == 413


def called(app, headers, parts, *, whole=True):
    """Send the parts of a body; return the codes of the answer and how many messages were read.

    If the body is not whole, its client goes away in place of a further part.
    """
    scope = {"type": "http", "method": "POST", "path": "/api/search", "headers": headers}
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if whole:
        messages[-1]["more_body"] = False
    else:
        messages.append({"type": "http.disconnect"})
    left, sent = list(messages), []

    async def receive():
        return left.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    codes = [message["status"] for message in sent if message["type"] == "http.response.start"]
    return codes, len(messages) - len(left)


def test_a_body_without_a_length_is_refused_while_it_is_read():
    bodies = []

    async def app(scope, receive, send):
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    limited = LimitedRequests(app, RequestLimits(image_bytes=25), "/api/search")
    parts = [bytes(10)] * 9
    assert called(limited, [], parts) == ([413], 3)
    assert called(limited, [(b"content-length", b"26")], parts) == ([413], 0)
    assert called(limited, [(b"content-length", b"1")], parts) == ([413], 3)  # a lie
    assert bodies == []
    assert called(limited, [], [b"a", b"b", b"", b"c"]) == ([200], 4)
    assert bodies == [b"abc"]


@pytest.mark.parametrize("arrived", [[], [b'{"to"']])
def test_a_request_whose_client_goes_away_before_its_body_arrives_is_not_carried_out(arrived):
    async def app(scope, receive, send):
        pytest.fail("it was carried out")

    limited = LimitedRequests(app, RequestLimits(), "/api/rollback")
    assert called(limited, [], arrived, whole=False)[0] == []
