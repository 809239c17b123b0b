"""The coordinator's ASGI application.

It serves DDML's fast path first, then the HTTP API (`shoal.coordinator.routes`), then the pages of
the dashboard. `ErrorMiddleware` turns every error into a response.
"""

from __future__ import annotations

from functools import partial

from starlette.types import ASGIApp

from shoal.coordinator.dashboard.pages import make_pages
from shoal.coordinator.ddml.fast_path import DDMLFastPath
from shoal.coordinator.routes import ROUTES
from shoal.coordinator.service import CoordinatorService
from shoal.transport.requests import ErrorMiddleware, RequestHandler, make_router


def make_app(service: CoordinatorService) -> ASGIApp:
    """Return the application for a service; the caller starts and stops the service."""
    handlers: dict[str, dict[str, RequestHandler]] = {}
    for route in (*ROUTES, *make_pages(service)):
        handlers.setdefault(route.path, {})[route.method] = partial(route.endpoint, service)
    return DDMLFastPath(service.ddml_studies, ErrorMiddleware(make_router(handlers)))
