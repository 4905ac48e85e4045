"""Serve the dashboard to this machine alone.

    STUDY_RESULTS=results python analysis/serve_dashboard.py [PORT]

Results may come from a stranger, and any page that a browser shows can send requests to this machine. Hence a random token, no
host but this machine's names (against DNS rebinding), no requests of other pages, no frames, and a content security policy
under which a page loads nothing from elsewhere.
"""

from __future__ import annotations

import secrets
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import marimo
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DASHBOARD = Path(__file__).with_name("dashboard.py")

HOSTS = ["localhost", "127.0.0.1"]

HEADERS = {
    "Content-Security-Policy": "; ".join(
        [
            "default-src 'self'",
            "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # marimo's own pages, and the charts that Vega compiles
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "worker-src 'self' blob:",
            "connect-src 'self' data:",
            "frame-src 'none'",
            "frame-ancestors 'none'",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
        ]
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Guarded:
    """An application that refuses requests of other pages, and whose every response carries HEADERS."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (origin := headers.get("origin")) is not None and urlsplit(origin).netloc != headers.get("host"):
            await PlainTextResponse("requests of other pages are refused", status_code=403)(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_guarded)


def dashboard(token: str) -> ASGIApp:
    """The dashboard as an application that asks for the token."""
    app = marimo.create_asgi_app(token=token, quiet=True).with_app(path="", root=str(DASHBOARD)).build()
    return TrustedHostMiddleware(Guarded(app), allowed_hosts=HOSTS)


def main() -> None:
    """Serve on the port that is given, else on a free one, until interrupted."""
    token = secrets.token_urlsafe()
    with socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/?access_token={token}", flush=True)
        uvicorn.Server(uvicorn.Config(dashboard(token), log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
