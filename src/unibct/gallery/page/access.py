"""Who may talk to the page: this machine only, or those who have the token.

Without a token the server answers to the names of this machine only. A page elsewhere that makes
a browser believe that its own name is this machine (DNS rebinding) is refused. With a token any
name is right: such a page has no token. Requests that other pages make a browser send are refused
in both cases.
"""

import hashlib
import hmac
import ipaddress
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        """Wrap an application.

        Args:
            app: gets the requests that are allowed.
            token: that requests must bring; None if only this machine can reach the server.
        """
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
            detail = "this server answers to localhost only; others need --host and a token"
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
