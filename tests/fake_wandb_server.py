"""Servers on loopback that stand in for W&B's: one that keeps what it is sent, and one that never answers."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from typing import Any

from tests.fake_runs import FakeRun

SECRET = "f00d" * 10
"""A key of the form that W&B gives out."""


class Listener:
    """A server on loopback that accepts and never answers."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.connections.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
        for connection in self.connections:
            connection.close()


class Server:
    """A W&B server on loopback that keeps the history of its runs and knows just the requests that the mirror causes."""

    def __init__(self) -> None:
        self.history: dict[str, list[str]] = {}
        self.broken = False
        self.refusals: dict[str, int] = {}
        """How many more requests are answered 429 Too Many Requests, by the end of their path."""
        self.refused: list[float] = []
        """When requests were refused."""
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                if server.refuses(self.path):
                    self.send_response(429)
                    self.send_header("Retry-After", "1")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = {} if "otel" in self.path else json.loads(sent or "{}")
                answer = json.dumps(server.answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def refuses(self, path: str) -> bool:
        """Whether a request comes too soon after others."""
        end = path.split("/")[-1]
        if self.refusals.get(end, 0) <= 0:
            return False
        self.refusals[end] -= 1
        self.refused.append(time.monotonic())
        return True

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            if sent := body.get("files", {}).get("wandb-history.jsonl"):
                self.history.setdefault(path.split("/")[-2], [])[sent["offset"] :] = sent["content"]
            return {}
        query, name = body.get("query", ""), body.get("variables", {}).get("name")
        project = {"id": "p", "name": "scaling-study", "entity": {"id": "e", "name": "me"}}
        if "RunResumeStatus" in query:
            return {"data": {"model": project | {"bucket": self._bucket(name) if name in self.history else None}}}
        if "UpsertBucket" in query:
            bucket = {"id": name, "name": name, "displayName": name, "sweepName": None, "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "CreateRunFiles" in query and not self.broken:
            files = [{"name": name, "uploadUrl": f"{self.url}/{name}"} for name in body["variables"]["files"]]
            return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def _bucket(self, name: str) -> dict[str, Any]:
        rows = self.history[name]
        texts = {"summaryMetrics": "{}", "config": "{}", "eventsTail": "[]", "historyTail": json.dumps(rows[-1:])}
        lines = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
        return {"id": name, "name": name, "displayName": name, "tags": [], "notes": None, "wandbConfig": "{}"} | texts | lines

    def rows(self, run: FakeRun) -> list[dict[str, Any]]:
        history = [json.loads(line) for line in self.history[run.folder.run_id]]
        assert [row["_step"] for row in history] == list(range(len(history)))
        return [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
