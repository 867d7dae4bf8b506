"""Flask, as thin as it goes: it routes, and turns what it refuses itself into problem+json."""

from collections.abc import Callable

import flask
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Rule

from api import dispatch, routes
from api.http import Reply, Route
from api.service import Service
from models import errors as faults
from models.settings import Settings


def create_app(settings: Settings, service: Service | None = None) -> flask.Flask:
    """The application. Its service, made unless given and not started, is `app.extensions["headrace"]`.

    Raises SettingsInvalid where the settings would leave it open to the network without keys.
    """
    if settings.auth == "off" and not dispatch.is_loopback(settings.host):
        raise faults.SettingsInvalid(
            f"HEADRACE_HOST={settings.host} can be reached from other machines: set HEADRACE_AUTH=keys, "
            "or bind to 127.0.0.1")
    app = flask.Flask("headrace", static_folder=None)
    app.url_map.merge_slashes = False  # it answers with redirects, in HTML
    service = app.extensions["headrace"] = service or Service.build(settings)
    for route in routes.routes():
        rule = Rule(route.path.replace("{", "<").replace("}", ">"), methods=[route.method],
                    endpoint=f"{route.method} {route.path}")
        app.url_map.add(rule)
        app.view_functions[rule.endpoint] = _view(service, route)
    app.register_error_handler(HTTPException, _refuse)
    return app


def _view(service: Service, route: Route) -> Callable[..., flask.Response]:
    def view(**params: str) -> flask.Response:
        return response(dispatch.answer(service, route, flask.request.environ, params))

    return view


def response(reply: Reply) -> flask.Response:
    out = flask.Response(reply.body, reply.status, reply.headers, content_type=reply.content_type)
    if reply.status == 304 or (not reply.body and reply.status != 200):
        del out.headers["Content-Type"]
    return out


def _refuse(error: HTTPException) -> flask.Response:
    """What Flask refuses by itself: unknown paths and methods, requests that can't be parsed."""
    environ = flask.request.environ
    request = dispatch.request_of(environ, environ["REQUEST_METHOD"], {})
    headers = {"X-Request-Id": request.id, "X-Content-Type-Options": "nosniff"}
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(_methods(request.path) or {*(error.valid_methods or ()), "OPTIONS"}))
        headers["Allow"] = allowed
        if request.method == "OPTIONS":
            return response(Reply(204, headers=headers))
    domain_error = _domain_error(error, request.method, request.path, headers.get("Allow"))
    reply = dispatch.refusal(domain_error, request)
    reply.headers |= headers
    return response(reply)


def _methods(path: str) -> set[str]:
    """The methods of a path that is a route's own: to Flask, `/v1/jobs/batch` also is a `/v1/jobs/{id}`."""
    own = {route.method for route in routes.routes() if route.path == path}
    return own | {"OPTIONS"} | ({"HEAD"} if "GET" in own else set()) if own else own


def _domain_error(error: HTTPException, method: str, path: str, allowed: str | None) -> faults.HeadraceError:
    status = error.code or 500
    if status == 404:
        return faults.NotFound(f"there is nothing at {path}; /openapi.json describes what there is")
    if status == 405:
        return faults.MethodNotAllowed(f"{path} does not answer {method}; it answers {allowed}")
    if status == 413:
        return faults.PayloadTooLarge()
    return faults.InvalidRequest(error.description or "") if status < 500 else faults.HeadraceError()


