"""The server answers this machine's own pages alone, and what it sends can do nothing in a browser."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from study.base.errors import InputError
from study.dashboard import serving
from study.dashboard.serving import ANSWERS, application, json_text, serve
from tests.synthetic import depth_or_width, sweep_folder

FORGED = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def client(root: Path) -> Any:
    """A client of a dashboard whose token is `secret`."""
    from starlette.testclient import TestClient

    return TestClient(application(root, "secret"), base_url="http://127.0.0.1:4000", follow_redirects=False)


def known(root: Path) -> Any:
    """A client that has given the token."""
    actual = client(root)
    assert actual.get("/", params={"access_token": "secret"}).status_code == 303
    return actual


def test_the_server_answers_its_own_page_alone(tmp_path: Path) -> None:
    """By the token, which the first redirect puts into a cookie; as this machine; and in no frame."""
    actual, token = client(tmp_path), {"access_token": "secret"}
    own, foreign = {"origin": "http://127.0.0.1:4000"}, {"origin": "http://evil.example"}
    asked: list[tuple[int, dict[str, dict[str, str]]]] = [
        (403, {}),
        (403, {"params": {"access_token": "guess"}}),
        (403, {"params": {"access_token": "é"}}),
        (400, {"params": token, "headers": {"host": "evil.example"}}),
        (403, {"params": token, "headers": foreign}),
        (303, {"params": token, "headers": own}),
        (403, {"headers": foreign}),
        (403, {"headers": {"origin": "http://127.0.0.1:5000"}}),
        (200, {"headers": own}),
    ]
    for path in ("/", "/api/overview", "/static/app.js"):
        actual.cookies.clear()
        for status, request in asked:
            answer = actual.get(path, **request)
            assert answer.status_code == status, (path, request)
            assert "<main" not in answer.text or (path, status) == ("/", 200)
            if status != 400:
                assert answer.headers["x-frame-options"] == "DENY"
                assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_the_token_leaves_the_address_and_the_rest_of_it_stays(tmp_path: Path) -> None:
    actual = client(tmp_path)
    answer = actual.get("/", params={"page": "sweep", "access_token": "secret", "sweep": "a&b"})
    assert answer.headers["location"] == "/?page=sweep&sweep=a%26b"
    elsewhere = actual.get("/%2fevil.example", params={"access_token": "secret"})
    assert elsewhere.headers["location"] == "/", "never another host"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


def test_no_script_but_the_dashboards_own_runs_and_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    answer = known(tmp_path)
    policy = dict(part.split(" ", 1) for part in answer.get("/").headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    page = answer.get("/").text
    assert "http" not in page
    assert "onclick" not in page
    assert page.count("<script") == page.count('<script src="/static/')


def test_a_figure_of_a_stranger_is_sandboxed_and_no_other_file_is_given(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "group" / "made")
    folder.figures.mkdir()
    (folder.figures / "law_fit.svg").write_text(FORGED)
    actual = known(tmp_path)
    answer = actual.get("/figure/group%2Fmade/law_fit.svg")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in (
        "made/..%2Fsweep.yaml",
        "group%2Fmade/sweep.yaml",
        "group%2Fmade/none.svg",
        "..%2Fx/law_fit.svg",
        "x/law_fit.svg",
    ):
        assert actual.get(f"/figure/{path}").status_code == 404
    assert actual.get("/static/../serving.py").status_code in (403, 404)
    assert actual.get("/static/%2e%2e/serving.py").status_code == 404


def test_every_answer_is_json_and_bad_questions_get_one_sentence(tmp_path: Path) -> None:
    depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    actual = known(tmp_path)
    for name in ANSWERS:
        answer = actual.get(f"/api/{name}", params={"sweep": "made"})
        assert answer.headers["content-type"] == "application/json"
        assert answer.status_code == (422 if name in ("run", "law") else 200), name
    for name in ("sweep", "curves", "run", "offers", "law", "importances", "pulse"):
        answer = actual.get(f"/api/{name}", params={"sweep": "nowhere"})
        assert (answer.status_code, len(answer.json()["problems"])) == (422, 1)
        assert answer.json()["problems"][0].startswith("nowhere: is no sweep in ")


def test_an_unforeseen_error_reaches_the_page_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.dashboard.pages.overview", lambda *_: 1 / 0)
    answer = known(tmp_path).get("/api/overview")
    assert answer.status_code == 500
    assert answer.json()["problems"] == ["this cannot be shown: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("hidden", ["\x1b[31m", "\u202e", "\u2066", "\u200b", "\u2028", "\x9b", "\x07", "\b", "\x7f"])
def test_characters_that_hide_or_reorder_others_are_not_sent(hidden: str) -> None:
    kept = "[31m" if hidden.endswith("[31m") else ""
    text = json_text({f"a{hidden}b": f"c{hidden}d \\u001b stays \n\tä\u00a0€"})
    assert json.loads(text) == {f"a{kept}b": f"c{kept}d \\u001b stays \n\tä\u00a0€"}


def test_numbers_that_are_not_finite_are_null() -> None:
    assert json.loads(json_text({"x": float("nan"), "y": [float("inf"), 1.5]})) == {"x": None, "y": [None, 1.5]}


def test_the_printed_token_is_drawn_anew_and_a_used_port_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    monkeypatch.setattr(serving, "import_module", lambda _: None)
    opened: list[str] = []
    for _ in range(2):
        serve(tmp_path, 0, opened.append)
    printed = capsys.readouterr().out.split()
    tokens = [address.split("access_token=")[1] for address in printed]
    assert len(set(tokens)) == 2
    assert min(map(len, tokens)) > 40
    assert all(address.startswith("http://127.0.0.1:") for address in printed)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot be used"):
        serve(tmp_path, taken.getsockname()[1])
