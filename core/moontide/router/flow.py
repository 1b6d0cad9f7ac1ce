"""One request's way: prefill, then decode; or decode alone, with the reason."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from moontide.kv.logs import LimitedLog
from moontide.router.backends import Backend, Group
from moontide.router.headers import for_client, for_server
from moontide.router.metrics import Metrics
from moontide.router.rewrite import decode_alone, decode_body, parse, prefill_body

__all__ = ["ClientLeft", "Flow", "Limits", "error_response", "read_at_most"]

_MAX_PARAMS_BYTES = 1 << 20

logger = logging.getLogger("moontide.router")


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds, sizes in bytes."""

    connect_timeout: float = 2.0
    prefill_timeout: float = 120.0
    """for the whole prefill leg"""
    silence_timeout: float = 300.0
    """between two pieces of an answer"""
    body_bytes: int = 16 << 20
    answer_bytes: int = 4 << 20
    """of an answer that is read as a whole: a prefill server's, a list of models"""


def error_response(status: int, kind: str, message: str, **headers: str) -> web.Response:
    """In the form that OpenAI clients understand."""
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


class Flow:
    """Shared by all requests; everything runs on one event loop."""

    def __init__(
        self, session: aiohttp.ClientSession, prefill: Group, decode: Group, metrics: Metrics, limits: Limits
    ) -> None:
        self._session = session
        self._prefill = prefill
        self._decode = decode
        self._metrics = metrics
        self._limits = limits
        self._log = LimitedLog(logger)

    async def run(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """The client's leaving cancels this, and with it the leg that is under way."""
        reason = decode_alone(body)
        params: dict[str, Any] | None = None
        if not reason:
            params, reason = await self._run_prefill(request, body)
        response, reason = await self._run_decode(request, body, params, reason)
        path = "decode" if reason else "prefill+decode"
        self._metrics.requests.labels(path, reason, str(response.status)).inc()
        return response

    async def _run_prefill(self, request: web.Request, body: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """(params for the decode server, or None; why not)."""
        backend = self._prefill.pick()
        if backend is None:
            return None, "prefill_on_probation" if self._prefill.backends else "no_prefill"
        timeout = aiohttp.ClientTimeout(
            total=self._limits.prefill_timeout, sock_connect=self._limits.connect_timeout, connect=None
        )
        began = time.monotonic()
        with backend.use():
            try:
                post = self._session.post(
                    backend.url + request.path,
                    data=msgspec.json.encode(prefill_body(body)),
                    headers=for_server(request.headers),
                    timeout=timeout,
                    allow_redirects=False,
                )
                async with post as answer:
                    if answer.status >= 500:
                        return None, self._prefill_failed(backend, f"HTTP {answer.status}", "prefill_error")
                    backend.succeeded()
                    if answer.status != 200:
                        return None, "prefill_refused"
                    data = await read_at_most(answer, self._limits.answer_bytes)
                    if data is None:
                        # Not held against the server: a client's options can make its answer long.
                        return None, "prefill_too_long"
            except asyncio.TimeoutError:
                return None, self._prefill_failed(backend, "no answer in time", "prefill_timeout")
            except (aiohttp.ClientError, OSError) as error:
                return None, self._prefill_failed(backend, _what(error), "prefill_unreachable")
        self._metrics.prefill_seconds.observe(time.monotonic() - began)
        params = _params_of(data)
        return params, "" if params is not None else "no_hand_over"

    def _prefill_failed(self, backend: Backend, what: str, reason: str) -> str:
        backend.failed()
        message = "prefill server %s: %s; on probation for %.1f s"
        self._log.warning(f"prefill {backend.url} {reason}", message, backend.url, what, backend.returns_in)
        return reason

    async def _run_decode(
        self, request: web.Request, body: dict[str, Any], params: dict[str, Any] | None, reason: str
    ) -> tuple[web.StreamResponse, str]:
        """(the response, sent or not; why it came from a decode server alone, if it did)."""
        tried: list[Backend] = []
        failure = "there is no decode server"
        while (backend := self._decode.pick_anyway(tried)) is not None:
            with backend.use():
                try:
                    response, reason = await self._ask(request, backend, body, params, reason)
                    return response, reason
                except aiohttp.ClientConnectorError as error:
                    # Not one byte of the request was taken in: another server may have it.
                    failure = f"cannot reach {backend.url}: {error.os_error.strerror or error}"
                except asyncio.TimeoutError:
                    failure = f"{backend.url} did not answer in time"
                    tried = list(self._decode.backends)
                except (aiohttp.ClientError, OSError) as error:
                    failure = f"{backend.url} broke off: {_what(error)}"
                    tried = list(self._decode.backends)
                backend.failed()
                tried.append(backend)
                self._log.warning(f"decode {backend.url}", "decode server: %s", failure)
        status = 503 if failure.startswith(("there is", "cannot reach")) else 502
        response = error_response(status, "decode_unavailable", failure, **_marks(reason))
        return response, reason

    async def _ask(
        self,
        request: web.Request,
        backend: Backend,
        body: dict[str, Any],
        params: dict[str, Any] | None,
        reason: str,
    ) -> tuple[web.StreamResponse, str]:
        limits = self._limits
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=limits.connect_timeout, sock_read=limits.silence_timeout
        )
        began = time.monotonic()
        while True:
            post = self._session.post(
                backend.url + request.path,
                data=msgspec.json.encode(decode_body(body, params)),
                headers=for_server(request.headers),
                timeout=timeout,
                allow_redirects=False,
            )
            async with post as answer:
                if answer.status >= 500 and params is not None:
                    # The hand-over may be what failed: once more without it.
                    params, reason = None, "hand_over_failed"
                    continue
                if answer.status < 200:
                    raise aiohttp.ClientPayloadError(f"HTTP {answer.status} in place of an answer")
                backend.succeeded()
                self._metrics.first_byte_seconds.observe(time.monotonic() - began)
                return await self._pass_on(request, answer, reason), reason

    async def _pass_on(self, request: web.Request, answer: aiohttp.ClientResponse, reason: str) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=for_client(answer.headers, _marks(reason)))
        pieces = answer.content.iter_any()
        try:
            await response.prepare(request)
            while (piece := await _next(pieces)) is not None:
                await response.write(piece)
            await response.write_eof()
        except _BrokenOff as error:
            # The status is out: the one honest sign left is an end in the middle.
            self._log.warning("broken", "the decode server broke off in the middle of an answer: %s", error)
            self._metrics.broken.inc()
            if request.transport is not None:
                request.transport.close()
        except (aiohttp.ClientError, OSError) as error:
            raise ClientLeft from error
        return response


class ClientLeft(Exception):
    """The client closed its connection; nobody is there to be answered."""


class _BrokenOff(Exception):
    pass


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    """The server's next piece, None at the end. Its errors are told apart from those of writing to the client."""
    try:
        return await anext(pieces, None)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise _BrokenOff(_what(error)) from error


async def read_at_most(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes | None:
    """The body, or None (and the connection closed) if it is longer."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > limit_bytes:
            answer.close()
            return None
    return bytes(data)


def _what(error: Exception) -> str:
    """Without the request's headers, which are in the repr of some: they hold the client's credentials."""
    return f"{type(error).__name__}: {error}"


def _marks(reason: str) -> dict[str, str]:
    if not reason:
        return {"x-moontide-path": "prefill+decode"}
    return {"x-moontide-path": "decode", "x-moontide-reason": reason}


def _params_of(data: bytes) -> dict[str, Any] | None:
    try:
        answer = parse(data)
        params = answer.get("kv_transfer_params")
    except (msgspec.DecodeError, AttributeError):
        return None
    if not isinstance(params, dict) or not params or len(msgspec.json.encode(params)) > _MAX_PARAMS_BYTES:
        return None
    return params
