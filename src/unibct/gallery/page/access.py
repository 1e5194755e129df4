"""Who may talk to the page: this machine only, or those who have the token.

Without a token the server answers to the names of this machine only. A page elsewhere that makes
a browser believe that its own name is this machine (DNS rebinding) is refused. With a token any
name is right: such a page has no token. Requests that other pages make a browser send are refused
in both cases.
"""

import asyncio
import hashlib
import hmac
import io
import ipaddress
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import SplitResult, parse_qs, urlsplit

from PIL import Image
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unibct.data.decoding import FORMATS, Pixels, decode
from unibct.errors import UserError

SHORTEST_TOKEN = 16
STATIC_PATH = "/static/"
_SAFE = ("GET", "HEAD")
_NEEDS_TOKEN = "this server needs its token: open the address that it printed, with ?token=…"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether a name or an address can only mean this machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def chosen_token(host: str, token: str | None) -> str | None:
    """Return the token of a server: the given one, a new one if others can reach it, or None."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UserError(
            f"a token has at least {SHORTEST_TOKEN} characters; leave it out to get one"
        )
    if token is None and not is_loopback(host):
        return secrets.token_urlsafe(24)
    return token


class GuardedAccess:
    """ASGI middleware that lets in who may come in, and adds headers that protect the page."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        """Wrap an application; without a token, only this machine can reach the server."""
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        cookie = "" if refusal is not None else self._new_cookie(scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    out[name] = value
                out.setdefault("Cache-Control", "no-store")
                if cookie:
                    out.append("Set-Cookie", cookie)
            await send(message)

        await (refusal or self._app)(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that is not allowed."""
        path: str = scope["path"]
        host = headers.get("host", "")
        if self._token is None and not is_loopback(_parts(f"//{host}").hostname or ""):
            detail = "this server answers to localhost only; others need another host and a token"
            return JSONResponse({"detail": detail}, 403)
        if "\0" in path:  # no file has such a name, and older libraries stumble over it
            return JSONResponse({"detail": "not found"}, 404)
        if not _is_from_our_page(scope["method"], path, headers):
            return JSONResponse({"detail": "requests of other pages are refused"}, 403)
        if self._token is None or path.startswith(STATIC_PATH) or self._has_token(scope, headers):
            return None
        challenge = {"WWW-Authenticate": "Bearer"}
        if path.startswith("/api/") or path == "/openapi.json":
            return JSONResponse({"detail": _NEEDS_TOKEN}, 401, challenge)
        return PlainTextResponse(_NEEDS_TOKEN, 401, challenge)

    def _has_token(self, scope: Scope, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(bearer.strip()):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        shown = cookies.get(_cookie_name(scope))
        if shown is not None and hmac.compare_digest(
            shown.value.encode(), self._cookie_value.encode()
        ):
            return True
        return self._is_token(_token_in_address(scope))

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), (self._token or "").encode())

    @property
    def _cookie_value(self) -> str:
        """What a browser keeps: it opens the page, but does not tell the token."""
        return hmac.new((self._token or "").encode(), b"page", hashlib.sha256).hexdigest()

    def _new_cookie(self, scope: Scope) -> str:
        """Return the cookie for a browser that has just shown the token in the address."""
        if self._token is None or not self._is_token(_token_in_address(scope)):
            return ""
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        name = _cookie_name(scope)
        return f"{name}={self._cookie_value}; HttpOnly; SameSite=Strict; Path=/{secure}"


def _token_in_address(scope: Scope) -> str:
    """Return the token in the address of the page; elsewhere it is not looked for."""
    if scope["path"] != "/" or scope["method"] not in _SAFE:
        return ""
    values = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
    return values[0]


def _cookie_name(scope: Scope) -> str:
    """Return a name with the port: browsers send cookies to all ports of a host."""
    server = scope.get("server") or ("", 0)
    return f"unibct_{server[1]}"


def _is_from_our_page(method: str, path: str, headers: Headers) -> bool:
    """Return whether a request is not one that another page made a browser send."""
    site = headers.get("sec-fetch-site", "none")
    if path.startswith("/api/") and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if method in _SAFE or origin is None:
        return True
    return _parts(origin).netloc.lower() == headers.get("host", "").lower() != ""


def _parts(address: str) -> SplitResult:
    """Return the parts of an address; what is no address has none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


# How much a client may ask for: requests in a time, bytes of a body, pixels of an image.

MOST_IMAGE_BYTES = 20_000_000
MOST_BODY_BYTES = 64_000  # of requests that bring no image
MOST_PIXELS = 50_000_000
_UPLOAD_SECONDS = 60
_MOST_CLIENTS = 4096


class TooLargeError(ValueError):
    """An image has more pixels than the page takes."""


def decoded_image(data: bytes, most_pixels: int = MOST_PIXELS) -> Pixels:
    """Decode an image that somebody has sent; one with too many pixels is refused unread."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except Exception:  # the decoder below says what is wrong
        return decode(data)
    if width * height > most_pixels:
        raise TooLargeError(f"{width}×{height} pixels are more than {most_pixels:,}")
    return decode(data)


class RateLimit:
    """A bucket of tokens for each client, which fills up again with time."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Let ``per_second`` tokens come back, up to ``burst``; ``clock`` gives the seconds."""
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Take tokens. Return 0, or the seconds until there are enough; then none are taken."""
        now = self._clock()
        tokens, counted = self._buckets.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._per_second)
        if client not in self._buckets and len(self._buckets) >= _MOST_CLIENTS:
            self._forget_full(now)
        if tokens < cost:
            self._buckets[client] = (tokens, now)
            return (cost - tokens) / self._per_second
        self._buckets[client] = (tokens - cost, now)
        return 0.0

    def _forget_full(self, now: float) -> None:
        """Forget clients that have been away for long; if there are none, forget all."""
        full = self._burst / self._per_second
        fresh = {c: b for c, b in self._buckets.items() if now - b[1] < full}
        self._buckets = fresh if len(fresh) < _MOST_CLIENTS else {}


@dataclass(frozen=True)
class RequestLimits:
    """What one server takes."""

    image_bytes: int = MOST_IMAGE_BYTES  # of an image
    # tokens that a client gets each second; a GET costs one, a POST `post_cost`
    per_second: float = 50
    burst: float = 500  # tokens that a client can save up
    post_cost: float = 10  # tokens that a POST costs: it makes models work


class LimitedRequests:
    """ASGI middleware that refuses what is too often or too large, while it is being read."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, image_path: str) -> None:
        """Wrap an application; images are sent to ``image_path``."""
        self._app = app
        self._limits = limits
        self._image_path = image_path
        self._rate = RateLimit(limits.per_second, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_read = scope["method"] in ("GET", "HEAD")
        client = (scope.get("client") or ("",))[0]
        seconds = self._rate.wait(client, 1 if is_read else self._limits.post_cost)
        if seconds:
            retry = {"Retry-After": str(math.ceil(seconds))}
            answer = JSONResponse({"detail": "too many requests; wait a little"}, 429, retry)
            await answer(scope, receive, send)
            return
        if is_read:
            await self._app(scope, receive, send)
            return
        most = self._limits.image_bytes if scope["path"] == self._image_path else MOST_BODY_BYTES
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS):
                body = await _body(scope, receive, most)
        except TimeoutError:
            await JSONResponse({"detail": "the upload takes too long"}, 408)(scope, receive, send)
            return
        except _ClientGoneError:
            return
        if body is None:
            detail = f"more than {most:,} bytes; send a smaller one"
            await JSONResponse({"detail": detail}, 413)(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


class _ClientGoneError(Exception):
    """The client went away before its body was there: what it wanted is not known."""


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """Read a body; None as soon as it is too long, whatever its header says."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > most:
        return None
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientGoneError
        part: bytes = message.get("body", b"")
        length += len(part)
        if length > most:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the body at once, and then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
