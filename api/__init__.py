"""The HTTP API: a thin Flask shell around plain views. A server runs `api.wsgi`."""

from api.shell import create_app

__all__ = ["create_app"]
