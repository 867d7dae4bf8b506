"""The OpenAPI document is valid, whole, and true to the routes; the page that shows it loads nothing from elsewhere."""

import base64
import hashlib
import json
import re
from typing import Any

import openapi_spec_validator
import pytest

from api import errors, openapi, routes
from api.http import PROBLEM, Route
from api.routes import openapi as pages


@pytest.fixture(scope="module", params=[True, False], ids=["keyless", "keys"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(openapi.document(routes.routes(), keyless=request.param)))
    return made


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(method.upper(), path): operation for path, methods in document["paths"].items()
            for method, operation in methods.items()}


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    openapi_spec_validator.validate(document)


def test_every_route_is_described_once(document: dict[str, Any]) -> None:
    assert operations(document).keys() == {(route.method, route.path) for route in routes.routes()}
    names = [operation["operationId"] for operation in operations(document).values()]
    assert len(names) == len(set(names)) == len(routes.routes())


def test_every_operation_says_what_it_does_and_what_may_go_wrong(document: dict[str, Any]) -> None:
    for (method, path), operation in operations(document).items():
        assert operation["summary"], path
        assert operation["description"], path
        assert {"422", "500", "503"} <= operation["responses"].keys(), path
        assert any(status.startswith(("2", "3")) for status in operation["responses"]), path
        if method != "GET":
            assert {"400", "413", "415"} <= operation["responses"].keys(), path
        assert {each["name"] for each in operation["parameters"] if each["in"] == "path"} == set(
            re.findall(r"{(\w+)}", path))


def test_every_code_of_an_error_is_documented_under_its_status(document: dict[str, Any]) -> None:
    for code, status in errors.STATUSES.items():
        shared = document["components"]["responses"][str(status)]
        assert f"`{code}`" in shared["description"]
        assert list(shared["content"]) == [PROBLEM]


def test_routes_with_a_scope_name_it_and_the_scheme() -> None:
    keyed = openapi.document(routes.routes(), keyless=False)
    keyless = openapi.document(routes.routes(), keyless=True)
    for route in routes.routes():
        found = operations(keyed)[route.method, route.path]
        if route.scope is None:
            assert found["security"] == []
            assert "401" not in found["responses"]
            continue
        assert found["security"] == [{"bearer": []}]
        assert f"`{route.scope}`" in found["description"]
        assert {} in operations(keyless)[route.method, route.path]["security"]


def test_a_route_may_add_headers_and_media_types_of_its_own() -> None:
    def view(*_: Any) -> Any:
        """Draw water."""

    route = Route("GET", "/v1/water/{id}", view, None, "Draw", "water", replies={200: "text/plain", 304: None},
                  headers={"X-Depth": ({"type": "integer"}, "how deep")})
    made = openapi.document([route], keyless=True)
    openapi_spec_validator.validate(made)
    operation = made["paths"]["/v1/water/{id}"]["get"]
    assert operation["responses"]["200"]["content"] == {"text/plain": {"schema": {"type": "string"}}}
    assert "content" not in operation["responses"]["304"]
    assert [each["name"] for each in operation["parameters"]] == ["id", "X-Depth"]


def test_the_page_allows_only_its_own_script_and_style() -> None:
    body, policy = pages._page()
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), body, re.DOTALL)
        assert directives[f"{kind}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
    assert directives["default-src"] == "'none'"
    assert directives["connect-src"] == "'self'"


def test_the_page_refers_to_nothing_elsewhere_and_sets_no_markup_from_data() -> None:
    body, _ = pages._page()
    assert not re.search(rb"https?://|//cdn|@import|<link|<img|<script [^>]*src|url\(", body)
    assert b"innerHTML" not in body
    assert not re.search(rb"\son\w+=|style=", body)
