"""Serve a language model of any recurrence behind an OpenAI-compatible endpoint, on a CPU: pip install 'chunkform[serve]'

    python examples/serve.py [--op gated_delta_rule] [--weights FILE] [--port 8000] [--rows 64] [--waiting 128]
    curl localhost:8000/v1/completions -d '{"prompt": "the cat sat on", "max_tokens": 20}' -H 'Content-Type: application/json'

`serving_engine.py` beside it has the engine. Tokens are bytes, and without `--weights` (a state_dict) they are drawn from random
ones. A request waits while all rows are taken; where too many wait it gets 429, and asks again later. A client that goes away is
cancelled. On SIGTERM no more is taken, and what runs is finished for `--grace` seconds; the rest gets an error. A stream that
ends without `[DONE]` was not finished.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import importlib
import json
import math
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any, Literal

import torch
import uvicorn
from fastapi import FastAPI
from fastapi import Request as Connection
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from serving_engine import Closed, Engine, Full, LanguageModel, Request
from starlette.exceptions import HTTPException

LOOK = 0.2  # seconds between two looks at whether a client is still there
ROOM = 65536  # bytes of a request beside its prompt


Stop = Annotated[str, Field(min_length=1, max_length=256)]


class Text(BaseModel):
    """A part of a message's content."""

    type: Literal["text"] = "text"
    text: str


class Message(BaseModel):
    role: str = "user"
    content: str | list[Text]

    @property
    def said(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(x.text for x in self.content)


class Options(BaseModel):
    """What is asked for: the parameters of OpenAI's endpoint that mean something here. null is what isn't said; another
    parameter, or another value of one that has no effect here, is refused."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    max_tokens: int = Field(16, ge=1, le=4096)
    temperature: float = Field(0.0, ge=0, le=10)
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str = ""
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    top_p: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    echo: Literal[False] = False
    logprobs: Literal[False] = False

    @model_validator(mode="before")
    @classmethod
    def said(cls, given: Any) -> Any:
        return {n: x for n, x in given.items() if x is not None} if isinstance(given, dict) else given


class Completion(Options):
    prompt: str | list[int]

    def tokens(self) -> list[int]:
        return list(self.prompt.encode()) if isinstance(self.prompt, str) else self.prompt


class Chat(Options):
    messages: list[Message] = Field(min_length=1)
    max_tokens: int = Field(
        16, ge=1, le=4096, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )  # the former name of it is the latter

    def tokens(self) -> list[int]:
        said = "".join(f"{m.role}: {m.said}\n" for m in self.messages)
        return list(f"{said}assistant: ".encode())


class Stream:
    """The tokens of one request, as they come from the engine's thread."""

    def __init__(self, engine: Engine, asked: Completion | Chat) -> None:
        loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self.about = {"id": uuid.uuid4().hex, "created": int(time.time())}
        self.engine, self.made, self.finish = engine, 0, "length"
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        stop = tuple(x.encode() for x in ([asked.stop] if isinstance(asked.stop, str) else asked.stop or ()))
        prompt = asked.tokens()
        if not prompt or not all(0 <= t < 256 for t in prompt):
            raise ValueError("prompt must be text, or tokens 0 to 255, and not empty")

        def tell(x: int | Exception | None) -> None:
            loop.call_soon_threadsafe(self.queue.put_nowait, x)

        self.request = engine.submit(Request(prompt, asked.max_tokens, tell, asked.temperature, asked.seed, stop))
        self.usage = {"prompt_tokens": len(prompt)}

    async def pieces(self, connection: Connection) -> AsyncIterator[str]:
        """Text, piece by piece; raises what the engine tells. The request of a client that goes away is cancelled."""
        ended, looked, held = False, time.monotonic(), b""
        try:
            while not ended:
                if time.monotonic() - looked > LOOK:
                    looked = time.monotonic()
                    if await connection.is_disconnected():
                        return
                try:
                    found = await asyncio.wait_for(self.queue.get(), LOOK)
                except TimeoutError:
                    continue
                if isinstance(found, Exception):
                    ended = True
                    raise found
                ended = found is None
                if found is None:
                    yield self.decoder.decode(held, final=True)
                    continue
                self.made += 1
                held += bytes([found])
                said = max((x for x in self.request.stop if held.endswith(x)), key=len, default=None)
                if said is not None:  # the engine ends there, too
                    self.finish, held = "stop", held.removesuffix(said)
                    continue
                keep = begun(held, self.request.stop)
                yield self.decoder.decode(held[: len(held) - keep])
                held = held[len(held) - keep :]
        finally:
            if not ended:
                self.engine.cancel(self.request)
            made = {"completion_tokens": self.made, "total_tokens": self.made + self.usage["prompt_tokens"]}
            self.usage |= made


def begun(said: bytes, stop: tuple[bytes, ...]) -> int:
    """How many of the last bytes may be the first ones of what it ends with: they aren't told yet."""
    return max((n for x in stop for n in range(1, min(len(x), len(said) + 1)) if said.endswith(x[:n])), default=0)


def app_of(engine: Engine, name: str) -> FastAPI:
    """The endpoint."""
    app = FastAPI(title="chunkform")
    app.add_middleware(Bounded, most=ROOM + 16 * engine.limits.longest)

    @app.exception_handler(RequestValidationError)
    async def misread(connection: Connection, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"{'.'.join(map(str, x['loc'][1:]))}: {x['msg']}".lstrip(": ") for x in error.errors())
        return refused(400, ValueError(said))

    @app.exception_handler(HTTPException)
    async def failed(connection: Connection, error: HTTPException) -> JSONResponse:
        return refused(error.status_code, ValueError(error.detail), error.headers)

    async def complete(kind: str, asked: Completion | Chat, connection: Connection) -> Any:
        try:
            stream = Stream(engine, asked)
        except Full as error:
            return refused(429, error, {"Retry-After": "1"})
        except Closed as error:
            return refused(503, error)
        except ValueError as error:
            return refused(400, error)
        if asked.stream:
            return StreamingResponse(events(kind, name, stream, connection), media_type="text/event-stream")
        try:
            text = "".join([x async for x in stream.pieces(connection)])
        except Exception as error:
            return refused(503 if isinstance(error, Closed) else 500, error)
        return answer(kind, name, stream, text, stream.finish, False) | {"usage": stream.usage}

    @app.post("/v1/completions")
    async def completions(asked: Completion, connection: Connection) -> Any:
        return await complete("text_completion", asked, connection)

    @app.post("/v1/chat/completions")
    async def chat(asked: Chat, connection: Connection) -> Any:
        return await complete("chat.completion", asked, connection)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"}]}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"running": len(engine.running), "waiting": len(engine.waiting)} | engine.counts

    return app


def answer(kind: str, name: str, stream: Stream, text: str, finish: str | None, part: bool) -> dict[str, Any]:
    """A completion, or a part of one."""
    chat = kind.startswith("chat")
    body = {"role": "assistant", "content": text}
    choice = {"text": text} if not chat else {"delta" if part else "message": body}
    about = stream.about | {"object": f"{kind}.chunk" if part and chat else kind, "model": name}
    return about | {"choices": [{"index": 0, "finish_reason": finish} | choice]}


async def events(kind: str, name: str, stream: Stream, connection: Connection) -> AsyncIterator[str]:
    """A completion as server-sent events; the last is [DONE], or an error."""
    try:
        async for text in stream.pieces(connection):
            if text:
                yield f"data: {json.dumps(answer(kind, name, stream, text, None, True))}\n\n"
    except Exception as error:
        yield f"data: {json.dumps({'error': {'message': str(error), 'type': type(error).__name__}})}\n\n"
        return
    last = answer(kind, name, stream, "", stream.finish, True) | {"usage": stream.usage}
    yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"


def refused(status: int, error: Exception, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "type": type(error).__name__}}, status, headers)


class Bounded:
    """Refuses a request whose body has more bytes than a prompt may take, before it is read to its end."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        said = dict(scope["headers"]).get(b"content-length", b"0")
        read = 0

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            return message if read <= self.most else {"type": "http.disconnect"}

        answer = refused(413, ValueError(f"a request has {self.most} bytes at most"), {"Connection": "close"})

        async def told(message: Any) -> None:  # what it makes of a body that was cut off is of no interest
            if read <= self.most:
                await send(message)
            elif message["type"] == "http.response.start":
                await answer(scope, receive, send)

        if int(said) > self.most:
            return await answer(scope, receive, send)
        return await self.app(scope, counted, told)


class Server(uvicorn.Server):
    """On SIGTERM and SIGINT the engine ends as well: what runs is finished, or told an error, before connections close."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace: float) -> None:
        super().__init__(config)
        self.engine, self.grace = engine, grace

    def handle_exit(self, sig: int, frame: Any) -> None:
        threading.Thread(target=self.engine.close, args=(self.grace,)).start()
        super().handle_exit(sig, frame)


def recurrence(name: str) -> str:
    """The name of an op that takes steps."""
    try:
        module = importlib.import_module(f"chunkform.generated.{name}")
    except ImportError:
        raise argparse.ArgumentTypeError(f"must be an op of the catalogue, got {name!r}") from None
    if not hasattr(getattr(module, name, None), "draft"):
        raise argparse.ArgumentTypeError(f"must be a recurrence of the catalogue, which takes steps; {name!r} is none")
    return name


def between(least: float, most: float = math.inf, kind: type[float] = int) -> Callable[[str], float]:
    """A number with these limits."""

    def number(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            limits = f"{least} or more" if most == math.inf else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {text!r}")
        return found

    return number


def weights(path: str) -> Any:
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        raise argparse.ArgumentTypeError(f"must be a file that torch.save wrote a state_dict to: {error}") from None


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("--op", type=recurrence, default="gated_delta_rule", help="of the catalogue")
    said.add_argument("--weights", type=weights, help="a state_dict of LanguageModel")
    said.add_argument("--width", type=between(1), default=64)
    said.add_argument("--heads", type=between(1), default=2)
    said.add_argument("--layers", type=between(1), default=2)
    said.add_argument("--host", default="127.0.0.1")
    said.add_argument("--port", type=between(0, 65535), default=8000)
    said.add_argument("--rows", type=between(1), default=64, help="sequences served at the same time")
    said.add_argument("--waiting", type=between(1), default=128, help="requests that may wait")
    said.add_argument("--drafts", type=between(0), default=3, help="tokens tried at once beside the next one")
    said.add_argument("--longest", type=between(1), default=8192, help="tokens of a prompt")
    said.add_argument(
        "--grace",
        type=between(0, kind=float),
        default=10.0,
        help="seconds for what runs when the server is told to end",
    )
    given = said.parse_args()
    if given.width % given.heads:
        said.error(f"--width must be a multiple of --heads, got {given.width} and {given.heads}")
    model = LanguageModel(given.op, given.width, given.heads, given.layers)
    if given.weights is not None:
        try:
            model.load_state_dict(given.weights)
        except (RuntimeError, TypeError) as error:
            said.error(f"--weights don't fit this model: {error}")
    engine = Engine(model, given.rows, given.waiting, given.drafts, longest=given.longest)
    config = uvicorn.Config(app_of(engine, given.op), given.host, given.port, log_level="warning", backlog=2048)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again at the end
        Server(config, engine, given.grace).run()


if __name__ == "__main__":
    main()
