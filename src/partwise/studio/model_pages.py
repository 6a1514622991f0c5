"""The routes of a run's pages: what it is, inspections, and text by its model."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from partwise.studio.answers import REPORT_HEADERS, Events, Handler, event, fields, told
from partwise.studio.models import Models, attention_word

RUN_SCREENS = {"run": "Run", "inspect": "Inspect", "generate": "Generate"}
"""The screens whose address names a run."""


def model_routes(models: Models, screen: Callable[[str], Handler]) -> list[Route]:
    """The routes of the pages of `models`; `screen` gives the page of a screen."""

    async def facts(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(models.facts, request.path_params["name"]))

    async def page(request: Request) -> Response:
        name, file = request.path_params["name"], request.path_params["file"]
        content = await run_in_threadpool(models.page, name, file)
        return Response(content, media_type="text/html; charset=utf-8", headers=REPORT_HEADERS)

    async def command(request: Request) -> Response:
        values = await fields(request)
        attention_word(values)
        return JSONResponse({"command": models.command(request.path_params["name"], values)})

    async def start(request: Request) -> Response:
        name, values = request.path_params["name"], await fields(request)
        words, attention = models.words(name, values), attention_word(values)

        async def events() -> AsyncGenerator[str, None]:
            async with aclosing(models.events(words, attention)) as found:
                async for each in found:
                    yield event(each)

        return Events(events())

    return [
        Route("/run/{name}", screen("run"), methods=["GET"]),
        Route("/run/{name}/inspect", screen("inspect"), methods=["GET"]),
        Route("/run/{name}/generate", screen("generate"), methods=["GET"]),
        Route("/pages/{name}/{file}", told(page), methods=["GET"]),
        Route("/api/runs/{name}", told(facts), methods=["GET"]),
        Route("/api/runs/{name}/command", told(command), methods=["POST"]),
        Route("/api/runs/{name}/start", told(start), methods=["POST"]),
    ]
