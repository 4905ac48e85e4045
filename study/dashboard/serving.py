"""The server of the dashboard: pages for this machine alone.

Results may come from a stranger, and any page that a browser shows can send requests to this machine. Hence a random token, no
host but this machine's names (against DNS rebinding), no requests of other pages, no frames, and a content security policy
under which a page runs no script but the dashboard's own and loads nothing from elsewhere. What a folder holds is sent as JSON
and shown as text; answers are rendered without their HTML, and figures are images, which run nothing.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import uvicorn
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from study.base.errors import InputError
from study.base.text import echo, visible

if TYPE_CHECKING:
    from study.dashboard.library import Library, OnOtherText

HOSTS = ["localhost", "127.0.0.1"]

SWITCH_SECONDS = 0.0005
"""After how long a thread that computes lets others run."""

STATIC = Path(str(files("study.dashboard").joinpath("static")))

HEADERS = {
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self' 'unsafe-inline'",  # the figures' library puts a style into each figure
            "img-src 'self' data:",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ]
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FIGURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""The policy of a figure that is opened by itself: an SVG of a stranger runs nothing and loads nothing."""

NO_TOKEN = "This page needs the whole address that study dashboard printed, with its token."


class Guarded:
    """An application that answers only its own pages and who knows the token; every response carries HEADERS.

    The address with the token puts it into a cookie, and leads to the page without it.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({name: value for name, value in HEADERS.items() if name not in headers})
            await send(message)

        await (self._refusal(Request(scope)) or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        headers: Headers = request.headers
        if (origin := headers.get("origin")) is not None and urlsplit(origin).netloc != headers.get("host"):
            return PlainTextResponse("requests of other pages are refused", status_code=403)
        cookie = f"study-dashboard-{request.url.port or 80}"  # cookies are shared by all ports of a host
        if (given := request.query_params.get("access_token")) is not None and self._knows(given):
            rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "access_token"])
            response = RedirectResponse(f"/{'?' * bool(rest)}{rest}", status_code=303)
            response.set_cookie(cookie, self.token, httponly=True, samesite="lax")
            return response
        return None if self._knows(request.cookies.get(cookie, "")) else PlainTextResponse(NO_TOKEN, status_code=403)

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())


ANSWERS = {
    "overview": "pages.overview",
    "sweep": "pages.sweep_page",
    "pulse": "pages.pulse",
    "texts": "pages.texts",
    "curves": "run_charts.curves",
    "run": "pages.run_page",
    "points": "run_charts.points",
    "importances": "run_charts.importances",
    "offers": "law_lines.offers",
    "law": "law_lines.law_lines",
    "form": "what_if.what_if_form",
    "what-if": "what_if.what_if",
}
"""What is answered as JSON under `/api/`: the function of study.dashboard that reads the library and the request's parameters.

Each is imported when it is first asked for, so that the server is there at once.
"""


def json_text(value: Any) -> bytes:
    """Return a value as JSON, in which a number that is not finite is null and no character hides or reorders others."""
    text = to_json(value, inf_nan_mode="null", fallback=lambda one: one.item(), by_alias=False).decode(errors="replace")
    text = _ESCAPED.sub(lambda match: match["kept"] or "", text)
    return (text if text.isprintable() else visible(text)).encode()


_ESCAPED = re.compile(r"(?P<kept>\\\\)|\\u00[01][0-9a-f]|\\[bfr]")
"""A backslash, which stays, or a control character other than a tab or a line break, as JSON writes them."""


def _answer(name: str, library: Callable[[], Library]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        module, function = ANSWERS[name].split(".")
        try:
            make = getattr(import_module(f"study.dashboard.{module}"), function)
            value, status = make(library(), request.query_params), 200
        except InputError as error:
            value, status = {"problems": [str(problem) for problem in error.problems]}, 422
        except OSError as error:
            value, status = {"problems": [f"{error.filename or name}: cannot be read: {error.strerror or error}"]}, 422
        except Exception as error:  # the page shows it; a terminal has no use for a traceback
            value, status = {"problems": [f"this cannot be shown: {type(error).__name__}: {error}"]}, 500
        return Response(json_text(value), status_code=status, media_type="application/json")

    return respond


def _figure(library: Callable[[], Library]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        from study.dashboard.pages import figure_of

        try:
            content = figure_of(library().snapshot(request.path_params["sweep"]), request.path_params["name"])
        except InputError as error:
            return PlainTextResponse(str(error), status_code=404)
        return Response(content, media_type="image/svg+xml", headers={"Content-Security-Policy": FIGURE_POLICY})

    return respond


def _page(_: Request) -> Response:
    return Response(STATIC.joinpath("index.html").read_bytes(), media_type="text/html")


def application(root: Path, token: str, on_other_text: OnOtherText | None = None) -> ASGIApp:
    """Return the dashboard of a results folder, for who knows the token."""

    @cache
    def library() -> Library:
        from study.dashboard.library import Library

        return Library(root, on_other_text)

    routes = [
        Route("/", _page),
        Route("/figure/{sweep:path}/{name}", _figure(library)),
        *(Route(f"/api/{name}", _answer(name, library)) for name in ANSWERS),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(Guarded, token=token)]
    return Starlette(routes=routes, middleware=guards)


def serve(root: Path, port: int, *opened: Callable[[str], object], on_other_text: OnOtherText | None = None) -> None:
    """Serve until interrupted, on a free port if `port` is 0; `opened` are called with the address."""
    token = secrets.token_urlsafe()
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise InputError.at("--port", f"{port} cannot be used: {error.strerror}; give another, or none") from None
    with listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/?access_token={token}"
        echo(address)
        threading.Thread(target=_warm, args=(address, *opened), daemon=True).start()
        config = uvicorn.Config(application(root, token, on_other_text), log_level="critical", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


def _warm(address: str, *opened: Callable[[str], object]) -> None:
    """Open the page, and import what its requests need while the browser starts.

    An import holds the interpreter; giving it up more often lets the page itself be served meanwhile.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    for each in opened:
        each(address)
    for module in dict.fromkeys(name.partition(".")[0] for name in ANSWERS.values()):
        import_module(f"study.dashboard.{module}")
