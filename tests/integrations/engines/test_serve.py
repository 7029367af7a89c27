"""The serving example: every stream is what it would be alone, whatever else is served; and nobody waits for nothing."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))
from serving_engine import Closed, Engine, Full, LanguageModel, Request  # noqa: E402

WIDTH = 32
SAID = b"the cat sat on the mat. "


def asked(i: int, tokens: int = 20) -> dict:
    """Prompts with a prefix in common, greedy and drawn."""
    prompt = SAID * (1 + i % 4) + bytes([65 + i % 7])
    return {"prompt": list(prompt), "max_tokens": tokens - i % 5, "temperature": 0.8 * (i % 2), "seed": i}


class Told:
    """A client of the engine itself."""

    def __init__(self, engine: Engine, **options) -> None:
        self.tokens, self.ended, self.done = [], None, threading.Event()
        self.request = engine.submit(Request(tell=self.tell, **options))

    def tell(self, x) -> None:
        if isinstance(x, int):
            self.tokens.append(x)
        else:
            self.ended = x
            self.done.set()

    def wait(self) -> list[int]:
        assert self.done.wait(60)
        return self.tokens


def alone(model: LanguageModel, requests: list[dict]) -> list[list[int]]:
    engine = Engine(model, rows=1, drafts=0, prefixes=0, waiting=1000)
    found = [told.wait() for told in [Told(engine, **x) for x in requests]]
    engine.close()
    return found


@pytest.mark.parametrize("op", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_streams_are_what_they_are_alone(op):
    model, requests = LanguageModel(op, WIDTH), [asked(i) for i in range(12)]
    engine = Engine(model, rows=5)
    told = [Told(engine, **x) for x in requests]
    found = [x.wait() for x in told]
    engine.close()
    assert found == alone(model, requests) and all(x.ended is None for x in told)
    assert engine.counts["accepted"] > 0 and engine.counts["prefix tokens"] > 0
    assert sorted(engine.free) == list(range(5))


def test_a_cancelled_request_leaves_its_row_and_the_others_alone():
    model = LanguageModel("gated_delta_rule", WIDTH)
    engine = Engine(model, rows=2)
    long, other = Told(engine, **asked(0, 4000)), Told(engine, **asked(1, 200))
    waiting = [Told(engine, **asked(i)) for i in (2, 3)]
    engine.cancel(waiting[1].request)
    while not long.tokens:
        time.sleep(0.001)
    engine.cancel(long.request)
    assert [other.wait(), waiting[0].wait()] == alone(model, [asked(1, 200), asked(2)])
    engine.close()
    assert len(long.tokens) < 4000 and not long.done.is_set() and not waiting[1].tokens
    assert sorted(engine.free) == [0, 1]


def test_too_many_are_refused_and_the_end_is_told():
    engine = Engine(LanguageModel("gated_delta_rule", WIDTH), rows=1, waiting=2)
    first = Told(engine, **asked(0, 100_000))
    while not first.tokens:
        time.sleep(0.001)
    others = [Told(engine, **asked(i)) for i in (1, 2)]
    with pytest.raises(Full, match="2 requests are waiting already"):
        Told(engine, **asked(3))
    engine.close(grace=0.1)
    for x in (first, *others):
        x.wait()
        assert isinstance(x.ended, Closed)
    with pytest.raises(Closed):
        Told(engine, **asked(4))


def test_a_long_prompt_costs_what_its_tokens_cost_and_a_longer_one_is_refused():
    """Checkpoints are found by a digest of what comes before: not by all of it, again for each of them."""
    model = LanguageModel("gated_delta_rule", WIDTH)
    before = time.process_time()
    longest = Request([7] * 1_000_000, 1, print)
    assert len(longest.marks) == 31_250 and time.process_time() - before < 1
    engine = Engine(model, rows=1, drafts=0, longest=100)
    with pytest.raises(ValueError, match="a prompt has 100 tokens at most, got 1000000"):
        engine.submit(longest)
    first = Told(engine, prompt=[5] * 100, max_tokens=3).wait()
    assert Told(engine, prompt=[5] * 100, max_tokens=3).wait() == first
    Told(engine, prompt=[6, *[5] * 99], max_tokens=3).wait()
    engine.close()
    assert engine.counts["prefix tokens"] == 96 and len(engine.prefixes) == 6


def test_next_to_no_temperature_is_none():
    model, request = LanguageModel("gated_delta_rule", WIDTH), {"prompt": list(SAID), "max_tokens": 6}
    assert len({tuple(x) for x in alone(model, [request | {"temperature": t} for t in (0.0, 1e-9, 1e-320)])}) == 1


@pytest.mark.parametrize("limit", ["rows", "waiting", "longest"])
def test_limits_are_above_0(limit):
    with pytest.raises(ValueError, match=f"{limit} must be 1 or more, got 0"):
        Engine(LanguageModel("gated_delta_rule", WIDTH), **{limit: 0})


def test_options_that_mean_nothing_are_named():
    """In one process: each costs the imports of a server."""
    serve = pytest.importorskip("serve")
    for options, told in (
        (
            ["--op", "softmax_attention"],
            "--op: must be a recurrence of the catalogue, which takes steps; 'softmax_attention'",
        ),
        (["--op", "nothing"], "--op: must be an op of the catalogue, got 'nothing'"),
        (["--rows", "0"], "--rows: must be 1 or more, got '0'"),
        (["--port", "65536"], "--port: must be 0 to 65535, got '65536'"),
        (["--grace", "nan"], "--grace: must be 0 or more, got 'nan'"),
        (["--weights", "nowhere.pt"], "--weights: must be a file that torch.save wrote a state_dict to"),
        (["--width", "30", "--heads", "4"], "--width must be a multiple of --heads, got 30 and 4"),
    ):
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as said:
            patch.setattr(sys, "argv", ["serve.py", *options])
            with pytest.raises(SystemExit, match="2"):
                serve.main()
        assert told in said.getvalue(), said.getvalue()


def test_who_waits_is_told_that_the_engine_failed():
    model = LanguageModel("gated_delta_rule", WIDTH)
    engine = Engine(model, rows=2)
    model.head.forward = lambda x: 1 / 0
    told = Told(engine, **asked(0))
    told.wait()
    assert "the engine failed: division by zero" in str(told.ended)
    with pytest.raises(Closed):
        Told(engine, **asked(1))
    engine.close()


# --- the endpoint -----------------------------------------------------------------------------------------------------


class Served:
    """The example in a process of its own."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [
            sys.executable,
            str(EXAMPLES / "serve.py"),
            "--width",
            str(WIDTH),
            "--port",
            str(self.port),
            *options,
        ]
        self.process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        for _ in range(600):
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server didn't start")

    def call(self, method: str, path: str, body: dict | bytes | None = None):
        """(status, headers, text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = body if isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def stream(self, body: dict) -> tuple[str, str]:
        """(text, "done"), or (text so far, what went wrong); asks again where it is told to."""
        while True:
            try:
                status, headers, text = self.call("POST", "/v1/completions", body | {"stream": True})
            except (OSError, http.client.HTTPException) as error:
                return "", f"lost: {type(error).__name__}"
            if status != 429:
                break
            time.sleep(0.1 * float(headers["Retry-After"]))
        if status != 200:
            return "", f"refused: {status}"
        lines = [x.removeprefix("data: ") for x in text.split("\n\n") if x]
        done = lines and lines[-1] == "[DONE]"
        events = [json.loads(x) for x in lines if x.startswith("{") and x.endswith("}")]
        said = "".join(x["choices"][0]["text"] for x in events if "choices" in x)
        errors = [x["error"]["type"] for x in events if "error" in x]
        return said, "done" if done else f"error: {errors[0]}" if errors else "cut off"

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def served():
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    made: list[Served] = []
    yield lambda *options: made.append(Served(*options)) or made[-1]
    for x in made:
        if x.process.poll() is None:
            x.process.kill()
            x.process.wait()


@pytest.mark.long
def test_64_clients_at_once_get_what_each_gets_alone(served):
    server, requests = served("--rows", "16", "--waiting", "24"), [asked(i, 40) for i in range(128)]
    with ThreadPoolExecutor(64) as clients:
        found = list(clients.map(server.stream, requests))
    expected = alone(LanguageModel("gated_delta_rule", WIDTH), requests)
    assert found == [(bytes(x).decode(errors="replace"), "done") for x in expected]
    health = json.loads(server.call("GET", "/health")[2])
    assert health["accepted"] > 0 and health["prefix tokens"] > 0 and health["running"] == 0
    assert server.end(signal.SIGTERM) == -signal.SIGTERM or server.process.returncode == 0


@pytest.mark.long
def test_whoever_is_cut_off_sees_it_and_a_new_server_serves(served):
    server = served("--rows", "8", "--waiting", "64")
    with ThreadPoolExecutor(24) as clients:
        found = [clients.submit(server.stream, asked(i, 4000)) for i in range(24)]
        time.sleep(1)
        server.end(signal.SIGKILL)
        ends = [x.result(60)[1] for x in found]
    assert all(x == "done" or x.startswith(("lost", "cut off")) for x in ends) and any(x != "done" for x in ends)
    again = served("--rows", "8")
    request = asked(3)
    (expected,) = alone(LanguageModel("gated_delta_rule", WIDTH), [request])
    assert again.stream(request) == (bytes(expected).decode(errors="replace"), "done")


@pytest.mark.long
@pytest.mark.parametrize(
    "grace, tokens, ends", [("120", 60, {"done"}), ("0.1", 4096, {"error: Closed", "refused: 503"})]
)
def test_a_server_that_ends_finishes_or_tells(served, grace, tokens, ends):
    """However busy the machine is: what has time is finished, and what can't be in so little is told."""
    server = served("--rows", "4", "--grace", grace)
    with ThreadPoolExecutor(6) as clients:
        found = [clients.submit(server.stream, asked(i, tokens)) for i in range(6)]
        while not any(x.done() for x in found) and not json.loads(server.call("GET", "/health")[2])["running"]:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        told = [x.result(120)[1] for x in found]
    assert server.process.wait(60) in (0, -signal.SIGTERM)
    late = {"refused: 503", "lost: ConnectionRefusedError"}  # what came after it isn't taken, and is told so
    taken = {*told} - late
    assert taken <= ends and taken & {"done", "error: Closed"}


@pytest.mark.long
def test_an_interrupted_server_ends_without_a_word(served, capfd):
    server = served("--rows", "2")
    server.end(signal.SIGINT)
    assert server.process.returncode == 0 and "Traceback" not in capfd.readouterr().err


@pytest.mark.long
def test_what_is_asked_wrongly_is_told_and_who_goes_away_is_cancelled(served):
    server = served("--rows", "2")
    for body in (
        {"prompt": ""},
        {"prompt": [300]},
        {"max_tokens": 3},
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a", "stop": ""},
        {"prompt": "a", "stop": ["b"] * 17},
        {"prompt": "a", "seed": 2**70, "temperature": 1},
        {"prompt": "a" * 9000},
        {"prompt": "a", "n": 2},
        {"prompt": "a", "logprobs": 3},
        {"prompt": "a", "nonsense": 3},
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": ',
        b"\xff",
    ):
        status, _, text = server.call("POST", "/v1/completions", body)
        assert status == 400 and json.loads(text)["error"]["message"]
    assert server.call("POST", "/v1/completions", {"prompt": "a" * 200_000})[0] == 413
    chunks = iter([b'{"prompt": "', *[b"a" * 50_000] * 4, b'"}'])
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", chunks, {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
    except OSError:  # hung up on while it still wrote
        pass
    connection.close()
    nothing = dict.fromkeys(("max_tokens", "temperature", "seed", "stop", "n", "user"))  # null, as some clients send it
    assert server.call("POST", "/v1/completions", {"prompt": "a"} | nothing)[0] == 200
    status, _, text = server.call("POST", "/v1/chat/completions", {"messages": [{"content": "hello"}], "max_tokens": 3})
    assert status == 200 and json.loads(text)["usage"]["completion_tokens"] == 3
    said = json.loads(server.call("POST", "/v1/completions", asked(1, 30))[2])["choices"][0]["text"]
    last = next(x for x in said[5:] if x.isascii())
    long = next(said[i : i + 3] for i in range(5, len(said)) if said[i : i + 3].isascii())
    several = [long, long[:2] + "\x7f", "\u00e9t\u00e9"]
    for stop, first in ((last, last), (["\x7f", last], last), (long, long), (several, long)):  # as clients send it
        found = json.loads(server.call("POST", "/v1/completions", asked(1, 30) | {"stop": stop})[2])["choices"][0]
        assert found["finish_reason"] == "stop" and found["text"] == said[: said.index(first)]
        assert server.stream(asked(1, 30) | {"stop": stop}) == (found["text"], "done")
    nearly = said[-3:] + "\x7f"  # begins, and doesn't come
    assert server.stream(asked(1, 30) | {"stop": nearly}) == (said, "done")
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    whole, same, none, both = (
        server.call("POST", "/v1/chat/completions", x)
        for x in (
            {"messages": [{"content": "hello"}], "max_tokens": 3},
            {"messages": [{"content": parts}], "max_completion_tokens": 3},
            {"messages": [{"content": [{"type": "image_url", "image_url": {}}]}]},
            {"messages": [{"content": "hello"}], "max_completion_tokens": 3, "max_tokens": 4},
        )
    )
    assert same[0] == 200 and none[0] == both[0] == 400
    assert json.loads(same[2])["choices"] == json.loads(whole[2])["choices"]
    for streams in (True, False):
        before = json.loads(server.call("GET", "/health")[2])["tokens"]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = json.dumps(asked(0, 4096) | {"stream": streams})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if streams:
            connection.getresponse().read(100)
        else:
            time.sleep(0.3)
        connection.sock.close()
        connection.close()
        for _ in range(100):
            if json.loads(server.call("GET", "/health")[2])["running"] == 0:
                break
            time.sleep(0.1)
        health = json.loads(server.call("GET", "/health")[2])
        assert health["running"] == 0 and health["tokens"] - before < 4096
