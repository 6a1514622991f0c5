"""The routes of the studio: pages, JSON for them, and changes, which are all POST."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from partwise.any_code.search_folder import SEARCH_FILE
from partwise.config import ConfigError
from partwise.studio.again import RERUN_SECONDS, again, verify_words
from partwise.studio.answers import REPORT_HEADERS, Handler, fail, fields, told
from partwise.studio.comparisons import EVENT_SECONDS, FILES, Comparisons
from partwise.studio.experiments import ExperimentQuestion
from partwise.studio.lesson_routes import lesson_routes
from partwise.studio.lessons import Lessons
from partwise.studio.model_pages import RUN_SCREENS, model_routes
from partwise.studio.models import Models
from partwise.studio.processes import Processes
from partwise.studio.questions import Allowed, Question, prediction_of
from partwise.version import __version__

TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
PAGES = ("ask", "predict", "watch", "read", "shelf", "search", "lessons", "lesson", "run", "inspect", "generate")
SCRIPTS = ("open", "page", "events", "uplot", *PAGES)
STATIC = (*(f"{name}.js" for name in SCRIPTS), "studio.css", "uplot.css", "icon.svg")
"""The files that pages load; there are no others."""

PUBLIC = ("/open", "/static/open.js", "/static/studio.css", "/static/icon.svg")
"""What is answered without a cookie: the page that exchanges the token of a link for one."""

SCREENS = {"ask": "Ask", "predict": "Predict", "watch": "Watch", "read": "Read", "shelf": "Shelf", **RUN_SCREENS}
SCREENS |= {"search": "Search", "lessons": "Lessons", "lesson": "Lesson"}


class Studio:
    """What the routes have in common."""

    def __init__(self, comparisons: Comparisons, processes: Processes, allowed: Allowed, prefix: str = "") -> None:
        self.comparisons, self.processes, self.allowed, self.prefix = comparisons, processes, allowed, prefix
        self.models = Models(comparisons.folder, processes, allowed.imports)
        self.templates = Environment(
            loader=PackageLoader("partwise.studio"), autoescape=select_autoescape(default=True)
        )

    def application(self) -> Starlette:
        """The ASGI application, which a guard has to stand before."""
        get, post = ["GET"], ["POST"]
        return Starlette(
            routes=[
                Route("/", self.first, methods=get),
                Route("/open", self.open, methods=get),
                Route("/ask", self.screen("ask"), methods=get),
                Route("/predict", self.screen("predict"), methods=get),
                Route("/watch/{name}", self.screen("watch"), methods=get),
                Route("/read/{name}", self.screen("read"), methods=get),
                Route("/shelf", self.screen("shelf"), methods=get),
                Route("/search/{name}", self.screen("search"), methods=get),
                Route("/lessons", self.screen("lessons"), methods=get),
                Route("/lesson/{name}", self.screen("lesson"), methods=get),
                Route("/static/{file}", self.static, methods=get),
                Route("/files/{name}/{file}", told(self.file), methods=get),
                Route("/api/choices", told(self.choices), methods=get),
                Route("/api/question", told(self.question), methods=post),
                Route("/api/estimate", told(self.estimate), methods=post),
                Route("/api/shelf", told(self.shelf), methods=get),
                Route("/api/searches/{name}", told(self.search), methods=get),
                Route("/api/comparisons", told(self.start), methods=post),
                Route("/api/comparisons/{name}", told(self.state), methods=get),
                Route("/api/comparisons/{name}/events", told(self.events), methods=get),
                Route("/api/comparisons/{name}/result", told(self.result), methods=get),
                Route("/api/comparisons/{name}/interrupt", told(self.interrupt), methods=post),
                Route("/api/comparisons/{name}/resume", told(self.resume), methods=post),
                Route("/api/comparisons/{name}/look", told(self.look), methods=post),
                Route("/api/comparisons/{name}/verify", told(self.verify), methods=post),
                *lesson_routes(Lessons(self.comparisons, self.processes)),
                *model_routes(self.models, self.screen),
            ],
            exception_handlers={Exception: fail},
        )

    async def first(self, request: Request) -> Response:
        return RedirectResponse(f"{self.prefix}/ask", 303)

    async def open(self, request: Request) -> Response:
        return HTMLResponse(self.templates.get_template("open.html.jinja").render(prefix=self.prefix))

    def screen(self, name: str) -> Handler:
        """The page of a screen, with the name of a comparison or a run if its address has one."""
        template = self.templates.get_template("screen.html.jinja")
        kind = "run" if name in RUN_SCREENS else "comparison"

        async def handle(request: Request) -> Response:
            facts = {"prefix": self.prefix, "screen": name, "title": SCREENS[name], "version": __version__}
            return HTMLResponse(template.render(**facts, **{kind: request.path_params.get("name", "")}))

        return handle

    async def static(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in STATIC:
            return JSONResponse({"error": "no such address"}, 404)
        media_type = TYPES[name.rpartition(".")[2]]
        return Response(static_file(name), media_type=media_type, headers={"cache-control": "max-age=3600"})

    async def file(self, request: Request) -> Response:
        name, file = request.path_params["name"], request.path_params["file"]
        content = await run_in_threadpool(self.comparisons.file, name, file)
        headers = dict(REPORT_HEADERS)
        if "download" in request.query_params:
            headers["content-disposition"] = f'attachment; filename="{name}-{file}"'
        return Response(content, media_type=FILES[file], headers=headers)

    async def choices(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(known_choices, self.allowed))

    async def question(self, request: Request) -> Response:
        values = await fields(request)
        return JSONResponse(await run_in_threadpool(self.described, values))

    def described(self, values: dict[str, Any]) -> dict[str, Any]:
        asked = self.asked(values)
        if isinstance(asked, ExperimentQuestion):
            return asked.describe()
        from partwise.studio.choices import describe_question  # imports torch

        return describe_question(asked)

    def asked(self, values: dict[str, Any]) -> Question | ExperimentQuestion:
        kind = ExperimentQuestion if "experiment" in values else Question
        return kind.from_page(values, self.allowed, self.comparisons.is_taken)

    async def estimate(self, request: Request) -> Response:
        question = await run_in_threadpool(self.asked, await fields(request))
        return JSONResponse(await self.processes.query(question.plan_words()))

    async def shelf(self, request: Request) -> Response:
        listed = self.processes.query(["runs", "--json"]) if (self.comparisons.folder / "runs").is_dir() else nothing()
        runs, records = await asyncio.gather(listed, run_in_threadpool(self.comparisons.records))
        ledger = [{"number": each.number, **each.content} for each in records if each.content["kind"] != "resumed"]
        shown = ("number", "time", "kind", "name", "question", "seeds", "planned", "low", "high", "value", "inside")
        return JSONResponse({"runs": runs, "ledger": [{k: e[k] for k in shown if k in e} for e in ledger]})

    async def search(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not (self.comparisons.path(name) / SEARCH_FILE).exists():
            raise ConfigError(f"no search is named {name}: its folder may have been moved or deleted")
        return JSONResponse(await self.processes.query(["try", "--search", name, "--json"]))

    async def start(self, request: Request) -> Response:
        values = await fields(request)
        predicted, asked = values.pop("prediction", None), values
        question = await run_in_threadpool(self.asked, asked)
        prediction = None if predicted is None else prediction_of(predicted)
        if self.comparisons.exists(question.name):
            found = {"error": f"{question.name} was asked already", "name": question.name}
            return JSONResponse(found, 409)
        stored = {**asked, "name": question.name}
        await run_in_threadpool(self.processes.start, question.name, question.compare_words(prediction), stored)
        return JSONResponse({"name": question.name})

    async def state(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.comparisons.state, request.path_params["name"]))

    async def events(self, request: Request) -> Response:
        name = request.path_params["name"]
        first = await run_in_threadpool(self.comparisons.state, name)  # or an error instead of a stream
        return StreamingResponse(self.states(name, first), media_type="text/event-stream")

    async def states(self, name: str, state: dict[str, Any]) -> AsyncIterator[str]:
        """An event for every new state, at most one in EVENT_SECONDS, until the comparison has ended."""
        last, silent = "", 0
        while True:
            text = json.dumps(state)
            if text != last:
                yield f"data: {text}\n\n"
                last, silent = text, 0
            elif (silent := silent + 1) % 8 == 0:
                yield ": still here\n\n"
            if state["state"] == "finished":
                return
            await asyncio.sleep(EVENT_SECONDS)
            try:
                state = await run_in_threadpool(self.comparisons.state, name)
            except ConfigError as error:
                yield f"data: {json.dumps({'name': name, 'state': 'gone', 'error': str(error)})}\n\n"
                return

    async def result(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = await run_in_threadpool(self.comparisons.result, name)
        commands = again(name, found["command"], found["next_seed"], self.allowed.imports)
        return JSONResponse({**found, "again": commands})

    async def verify(self, request: Request) -> Response:
        """Judge the values of a comparison again, and repeat some trials: what `partwise verify` prints."""
        name = request.path_params["name"]
        self.comparisons.file(name, "certificate.json")  # or an error
        words = verify_words(name, (await fields(request)).get("trials", 0), self.allowed.imports)
        found = await self.processes.query([*words, "--json"], RERUN_SECONDS, answers=(0, 1))
        return JSONResponse(found)

    async def interrupt(self, request: Request) -> Response:
        await run_in_threadpool(self.comparisons.interrupt, request.path_params["name"])
        return JSONResponse({"ok": True})

    async def resume(self, request: Request) -> Response:
        name = request.path_params["name"]
        stored = dict(self.comparisons.stored_question(name))
        question = await run_in_threadpool(self.asked, stored)
        if question.name != name:
            raise ConfigError(f"{name}: its stored question is of {question.name}")
        await run_in_threadpool(self.processes.start, name, question.compare_words(None), stored)
        return JSONResponse({"name": name})

    async def look(self, request: Request) -> Response:
        self.comparisons.path(request.path_params["name"])
        return JSONResponse(await self.processes.query(["look", request.path_params["name"], "--json"]))


async def nothing() -> list[Any]:
    return []


@cache
def known_choices(allowed: Allowed) -> dict[str, Any]:
    from partwise.studio.choices import list_choices  # imports torch

    return list_choices(allowed)


@cache
def static_file(name: str) -> bytes:
    return files("partwise.studio").joinpath("static", name).read_bytes()
