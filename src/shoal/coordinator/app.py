"""The coordinator as an ASGI application: DDML's bare paths first, then the routes, then the pages, and the guard around them all."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.coordinator.bare import BareDDML
from shoal.coordinator.office import Office
from shoal.coordinator.pages import pages_of
from shoal.coordinator.routes import ROUTES, Endpoint, wrong_method
from shoal.transport.problems import Guard, not_here


def make_app(office: Office) -> ASGIApp:
    """The application that serves an office's studies. To start and stop the office is for the caller."""

    methods: dict[str, dict[str, Endpoint]] = {}
    for way in (*ROUTES, *pages_of(office)):
        methods.setdefault(way.path, {})[way.method] = way.endpoint
    routes = [Route(path, _Path(office, endpoints)) for path, endpoints in methods.items()]
    return BareDDML(office.devices, Guard(Router(routes, redirect_slashes=False, default=_nowhere)))


class _Path:
    """All methods of a path. Others are refused, HEAD and OPTIONS among them: there is nothing here for pages of other origins."""

    def __init__(self, office: Office, endpoints: dict[str, Endpoint]) -> None:
        self._office, self._endpoints = office, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            raise wrong_method(", ".join(sorted(self._endpoints)))
        answer = await endpoint(self._office, Request(scope, receive))
        await answer(scope, receive, send)


async def _nowhere(*_: object) -> None:
    raise not_here("There is nothing under this path.")
