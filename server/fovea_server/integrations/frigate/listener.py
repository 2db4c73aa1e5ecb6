"""Answers the detectors of any number of Frigate servers on one ZeroMQ socket."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import time
from collections import OrderedDict
from functools import partial
from ipaddress import ip_address
from pathlib import PurePath
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from fovea_preprocess.errors import FoveaError, InvalidOption, InvalidRequest, NotFound, Unavailable
from fovea_server.dataplane.prediction import PredictRequest
from fovea_server.dataplane.service import Service
from fovea_server.error_status import http_status
from fovea_server.feature import Feature
from fovea_server.integrations.frigate.messages import (
    OPTIONS,
    answer,
    document,
    header_of,
    image_of,
    refusal,
    rows,
)
from fovea_server.integrations.request_handling import BOXES, check_task, default_model
from fovea_server.models.model import ServedModel, State
from fovea_server.settings import Settings
from fovea_server.traffic.call import Call

S = TypeVar("S", bound="zmq.Socket[Any]")

_FORM = re.compile(r"ipc://(?P<path>.+)|tcp://(?P<host>\*|\[[^]]+\]|[^]:/[]+):(?P<port>\d+|\*)")
_MAX_PORT = 65535
# Number of messages that ZeroMQ queues per sender: a frame and the next frame.
_WAITING = 2
# Largest size in bytes of one part of a message, because ZeroMQ cannot limit the whole message. It
# is enough for a 4K frame in uint8, or 1600 x 1600 pixels in float32.
_LARGEST_PART = 32 << 20
# Time in milliseconds between two heartbeats, which detect senders on a machine that has stopped.
_HEARTBEAT_MS = 30_000
_LINGER_MS = 1000

log = logging.getLogger(__name__)

API = "frigate-zmq"

# Longest time in seconds to wait for a model that is being loaded, and time between two checks.
# Frigate waits 30 s for the response about a model, and does not repeat the request.
_PATIENCE_S, _LOOK_S = 25.0, 0.1
# Largest number of messages that are answered concurrently. Further messages wait in ZeroMQ and at
# their senders.
_MAX_OPEN = 256
# Largest number of requests that wait for a model, in addition to `_MAX_OPEN` messages. Further
# requests are answered at once.
_MAX_WAITING = 64
# Largest number of parts that are kept: sender, empty part of a REQ socket, header, tensor, and one
# superfluous part, by which a message with too many parts is detected.
_MAX_PARTS = 5
# Largest number of remembered senders. Each detector of Frigate is a sender. If it reconnects after
# a timeout, it is a new sender.
_MAX_SENDERS = 4096


def check_address(address: str) -> bool:
    """Return whether an address can be reached only from this machine.

    Raises:
        InvalidOption: ZeroMQ cannot listen on the address.
    """
    form = _FORM.fullmatch(address)
    if form is None or (form["port"] not in (None, "*") and int(form["port"]) > _MAX_PORT):
        raise InvalidOption(
            f"--frigate-address is '{address}', but must be an address such as "
            "tcp://127.0.0.1:5555, or ipc:///tmp/cache/zmq_detector in a directory that Frigate "
            "can also open"
        )
    host = (form["host"] or "localhost").strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_free(settings: Settings) -> None:
    """Check that the server can listen on the address in the settings.

    Raises:
        Unavailable: the address is in use, or does not belong to this machine.
    """
    context = zmq.Context()
    bind_socket(context, settings).close()
    context.term()


def bind_socket(context: zmq.Context[S], settings: Settings) -> S:
    """Open a socket that listens on the address in the settings.

    Raises:
        Unavailable: the address is in use, or does not belong to this machine.
    """
    socket = context.socket(zmq.ROUTER)
    socket.linger = _LINGER_MS
    socket.rcvhwm = _WAITING
    socket.ipv6 = "[" in settings.frigate_address
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.maxmsgsize = min(settings.http_max_input_size, _LARGEST_PART)
    try:
        socket.bind(settings.frigate_address)
    except zmq.ZMQError as error:
        socket.close()
        context.term()
        advice = "choose an address of this machine with --frigate-address"
        if error.errno == errno.EADDRINUSE:
            advice = (
                "stop the program that uses this address, or choose another address with "
                "--frigate-address"
            )
        raise Unavailable(
            f"cannot listen on {settings.frigate_address} ({error.strerror}): {advice}"
        ) from None
    return socket


class FrigateListener(Feature):
    """The socket for Frigate's detectors (`--api frigate-zmq`).

    A detector first requests a model by name, and then sends frames without a name. Every message
    gets a response, with one exception: after a restart of this server, a frame from an unknown
    detector gets none if several models are possible. Frigate then requests its model again.

    Raises:
        InvalidOption: the settings do not allow a socket for Frigate.
        Unavailable: the server cannot listen on the address.
    """

    def __init__(self, service: Service) -> None:
        _check(service)
        self._service = service
        self._plane = service.plane
        self._wanted: OrderedDict[bytes, str] = OrderedDict()
        self._free = asyncio.Semaphore(_MAX_OPEN)
        self._open: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[Any] | None] = set()

    async def start(self) -> None:
        """Start to listen.

        Raises:
            Unavailable: the address cannot be used.
        """
        settings = self._service.settings
        self._context = zmq.asyncio.Context()
        self._socket = bind_socket(self._context, settings)
        log.info(
            "listening for Frigate's detectors on %s",
            self._socket.getsockopt_string(zmq.LAST_ENDPOINT),
        )
        self._receiving = asyncio.create_task(self._receive())

    async def stop(self) -> None:
        """Answer the messages that were received, and close the socket."""
        self._receiving.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=self._service.settings.exit_timeout_secs)
        for task in self._open:
            task.cancel()
        await asyncio.gather(self._receiving, *self._open, return_exceptions=True)
        self._socket.close()
        await asyncio.to_thread(self._context.term)

    async def _receive(self) -> None:
        while True:
            await self._free.acquire()
            task = asyncio.create_task(self._respond(await self._message()))
            self._open.add(task)
            task.add_done_callback(self._forget)

    async def _message(self) -> list[zmq.Frame]:
        """Receive the next message. Parts beyond `_MAX_PARTS` are dropped."""
        message: list[zmq.Frame] = []
        more = True
        while more:
            part = await self._socket.recv(copy=False)
            more = part.more
            if len(message) < _MAX_PARTS:
                message.append(part)
        return message

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if task in self._waiting:
            self._waiting.remove(task)
        else:
            self._free.release()

    async def _respond(self, message: list[zmq.Frame]) -> None:
        sender, *frames = message
        # A REQ socket sends an empty part first, and expects it in the response. A DEALER socket
        # may omit it.
        envelope = [sender.bytes, b""] if frames and not len(frames[0]) else [sender.bytes]
        parts = [frame.buffer for frame in message[len(envelope) :]]
        call = Call(self._service.traffic, "ZMQ", f"/{API}", _address(message[-1]), _no_header)
        call.enter()
        try:
            with self._service.budget.body() as take:
                take(sum(part.nbytes for part in parts))
                reply = await self._answer_message(call, sender.bytes, parts)
        except FoveaError as error:
            reply = self._refuse(call, error, refusal(error))
        except Exception:
            log.exception("ZMQ %r", call.path, extra={"id": call.id})
            fault = FoveaError("an internal error; the server's log has the details")
            reply = self._refuse(call, fault, refusal(fault))
        if reply:
            await self._socket.send_multipart([*envelope, *reply])

    async def _answer_message(
        self, call: Call, sender: bytes, parts: list[memoryview]
    ) -> list[bytes]:
        header = header_of(parts)
        if "model_request" in header or "model_data" in header:
            return await self._about_model(call, sender, header)
        call.path += "/detect"
        self._service.authenticator.admit(call, "inference", operation=f"ZMQ {API}")
        most_pixels = int(self._service.settings.max_megapixels * 1e6)
        read = partial(image_of, header, parts, most_pixels)
        image = read() if header.get("dtype") == "uint8" else await asyncio.to_thread(read)
        try:
            model = self._model_for(call, sender)
        except FoveaError as error:
            return self._refuse(call, error, refusal(error) if sender in self._wanted else [])
        call.model = model.name
        check_task(model, BOXES)
        request = PredictRequest(model, None, [image], OPTIONS, encode=rows)
        prediction = await self._plane.predict(request)
        [result] = prediction.images
        if isinstance(result, FoveaError):
            raise result
        call.end(200, len(result.encoded))
        return answer(result.encoded)

    def _model_for(self, call: Call, sender: bytes) -> ServedModel:
        if (wanted := self._wanted.get(sender)) is not None:
            self._wanted.move_to_end(sender)
            return self._find(wanted)
        instead = "set model.path in Frigate's configuration to the name of one"
        return default_model(self._service, call, API, BOXES, instead)

    async def _about_model(self, call: Call, sender: bytes, header: dict[str, Any]) -> list[bytes]:
        """Report whether a model is available, and reject a model file."""
        call.path += "/model"
        self._service.authenticator.admit(call, "inference")
        name = header.get("model_name")
        try:
            if not isinstance(name, str) or not name:
                raise NotFound(
                    "the request has no model name: set model.path in Frigate's configuration to "
                    "the name of a model"
                )
            if "model_data" in header:
                raise InvalidRequest(
                    f"the server does not accept the model file '{name[:60]}' from Frigate: build "
                    "the model with `fovea build FILE.onnx`, and set model.path in Frigate's "
                    "configuration to the model's name, or start the server with --api "
                    f"{API}=MODEL"
                )
            model = await self._ready(name)
        except FoveaError as error:
            there = not isinstance(error, NotFound)
            states = {"model_available": there, "model_saved": False, "model_loaded": False}
            return self._refuse(call, error, document(**states, message=str(error)))
        call.model = model.name
        self._wanted[sender] = name
        if len(self._wanted) > _MAX_SENDERS:
            self._wanted.popitem(last=False)
        call.end(200)
        message = f"model '{model.name}' is ready"
        return document(model_available=True, model_loaded=True, message=message)

    async def _ready(self, wanted: str) -> ServedModel:
        """Wait for a model that is being loaded, and return it.

        Raises:
            NotFound, ModelNotReady, InvalidRequest: the model cannot be used.
        """
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until and self._is_loading(wanted) and self._leave_place():
            await asyncio.sleep(_LOOK_S)
        model = self._find(wanted)
        self._plane.models.check_ready(model.name)
        check_task(model, BOXES)
        return model

    def _is_loading(self, wanted: str) -> bool:
        if self._plane.models.draining:
            return False
        try:
            return self._find(wanted).state is State.LOADING
        except NotFound:
            return not self._plane.models.ready

    def _leave_place(self) -> bool:
        """Let another message be answered while this task waits.

        Return False if too many tasks wait.
        """
        task = asyncio.current_task()
        if task not in self._waiting:
            if len(self._waiting) == _MAX_WAITING:
                return False
            self._waiting.add(task)
            self._free.release()
        return True

    def _find(self, wanted: str) -> ServedModel:
        """Return the model whose name is the file name in Frigate's configuration, or its stem."""
        for name in (wanted, PurePath(wanted).stem):
            try:
                return self._plane.models.get(name)
            except NotFound as error:
                unknown = error
        if (named := self._service.apis[API]) is not None:
            return self._plane.models.get(named)
        raise unknown.with_text(
            f"{unknown}; set model.path in Frigate's configuration to the name of a model, or "
            f"start the server with --api {API}=MODEL"
        )

    def _refuse(self, call: Call, error: FoveaError, reply: list[bytes]) -> list[bytes]:
        status = http_status(error)
        call.end(status, sum(map(len, reply)), error)
        if isinstance(error, (InvalidRequest, NotFound)):
            # Log the reason, because Frigate does not show it. Other errors are already in the log.
            self._service.traffic.count_refusal(call.model, error)
        return reply


def _address(part: zmq.Frame) -> str | None:
    """Return the IP address of the sender.

    If the sender uses a socket in the file system, return None.
    """
    try:
        address = str(part.get("Peer-Address"))
    except zmq.ZMQError:
        return None
    return None if address.startswith("localhost:") else address


def _no_header(name: str) -> None:
    return None


def _check(service: Service) -> None:
    settings, authenticator = service.settings, service.authenticator
    if authenticator.keys is not None or authenticator.http.secret("inference") is not None:
        raise InvalidOption(
            "--api frigate-zmq works only without keys, because Frigate sends no key: run a "
            "separate server without --keys for Frigate"
        )
    is_local = check_address(settings.frigate_address)
    check_free(settings)
    if not is_local:
        log.warning(
            "--frigate-address %s: other machines may send frames without a key",
            settings.frigate_address,
        )
