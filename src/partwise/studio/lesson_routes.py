"""The routes of the lessons."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from partwise.config import ConfigError
from partwise.studio.answers import fields, told
from partwise.studio.lessons import Lessons
from partwise.studio.questions import prediction_of


def lesson_routes(lessons: Lessons) -> list[Route]:
    """JSON of the lessons, and what starts and ends their runs and checks answers to their exercises."""

    async def listed(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lessons.listed))

    async def content(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lessons.content, number_of(request)))

    async def state(request: Request) -> Response:
        return await state_of(number_of(request))

    async def state_of(number: int) -> Response:
        return JSONResponse(await run_in_threadpool(lessons.state, number))

    async def start(request: Request) -> Response:
        values: dict[str, Any] = await fields(request)
        prediction = prediction_of(values["prediction"]) if values.get("prediction") else None
        await run_in_threadpool(lessons.start, number_of(request), prediction)
        return await state_of(number_of(request))

    async def interrupt(request: Request) -> Response:
        await run_in_threadpool(lessons.interrupt, number_of(request))
        return await state_of(number_of(request))

    async def answer(request: Request) -> Response:
        words = await run_in_threadpool(lessons.answer_words, number_of(request))
        return JSONResponse(await lessons.processes.query(words))

    async def check(request: Request) -> Response:
        values: dict[str, Any] = await fields(request)
        words = await run_in_threadpool(lessons.check_words, number_of(request), values.get("answer"))
        return JSONResponse(await lessons.check(words))

    get, post = ["GET"], ["POST"]
    return [
        Route("/api/lessons", told(listed), methods=get),
        Route("/api/lessons/{number}", told(content), methods=get),
        Route("/api/lessons/{number}/state", told(state), methods=get),
        Route("/api/lessons/{number}/start", told(start), methods=post),
        Route("/api/lessons/{number}/interrupt", told(interrupt), methods=post),
        Route("/api/lessons/{number}/answer", told(answer), methods=post),
        Route("/api/lessons/{number}/check", told(check), methods=post),
    ]


def number_of(request: Request) -> int:
    text = request.path_params["number"]
    if not (text.isascii() and text.isdecimal() and len(text) < 3):
        raise ConfigError(f"lesson {text[:20]}: expected its number")
    return int(text)
