"""How much a client may ask for: requests in a time, bytes of a body, pixels of an image."""

import asyncio
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unibct.data.decoding import FORMATS, Pixels, decode

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
        """Describe the buckets.

        Args:
            per_second: tokens that come back each second.
            burst: tokens in a full bucket.
            clock: returns the time in seconds.
        """
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
    """What one server takes.

    Attributes:
        image_bytes: of an image.
        per_second: tokens that a client gets each second; a GET costs one, a POST ``post_cost``.
        burst: tokens that a client can save up.
        post_cost: tokens that a POST costs: it makes models work.
    """

    image_bytes: int = MOST_IMAGE_BYTES
    per_second: float = 50
    burst: float = 500
    post_cost: float = 10


class LimitedRequests:
    """ASGI middleware that refuses what is too often or too large, while it is being read."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, image_path: str) -> None:
        """Wrap an application.

        Args:
            app: gets what is within the limits.
            limits: of each client.
            image_path: where images are sent to.
        """
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
