"""Answers the requests of one protocol, whether they succeed or fail."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from fovea_preprocess.errors import BodyTooLarge, FoveaError
from fovea_server.byte_budget import Reservation
from fovea_server.dataplane.service import Service
from fovea_server.http.cors import Cors
from fovea_server.http.guard import Guard
from fovea_server.http.messages import Request, Response
from fovea_server.http.receive import in_time
from fovea_server.traffic.call import CALL, REQUEST_ID_HEADER, Call, lookup

log = logging.getLogger(__name__)

ID_HEADER = REQUEST_ID_HEADER.encode()

Client = Sequence[str | int] | None

LARGE_ANSWER = 65_536
"""Bytes from which several writes are cheaper than a copy."""


class Front(ABC):
    """Answers the requests of one protocol.

    Attributes:
        keeps_refused: a refused request is answered after its body, and its connection is kept;
            otherwise it is answered at once, and its connection closes.
        cors: marks the answers that pages from elsewhere may read.
    """

    keeps_refused: ClassVar[bool]

    def __init__(self, service: Service) -> None:
        self.service = service
        self.budget = service.budget
        self.cors = Cors(service.settings.cors_origin)
        self._guard = Guard(service, service.settings.http_address)

    @abstractmethod
    def takes(self, method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return True for a request of this protocol; names of headers are in lower case."""

    @abstractmethod
    def route(self, request: Request) -> None:
        """Give a request its endpoint, or an answer; FoveaError: it is refused."""

    @abstractmethod
    def error_answer(self, error: FoveaError) -> Response:
        """Make an answer with an error."""

    @abstractmethod
    def too_large(self, size: int | None) -> BodyTooLarge:
        """Make the error for a body over the limit; `size` is None where it is not declared."""

    def admit(
        self, method: str, target: str, headers: dict[bytes, bytes], client: Client
    ) -> Request:
        """Route a request by its head, or refuse it; `client` is address and port."""
        request = self.begin(method, target, headers, client)
        # Not `enter`: this task goes on to other requests.
        before = CALL.set(request.call)
        try:
            self._guard.check(method, headers)
            self.route(request)
        except FoveaError as error:
            request.answer = self.error_answer(error)
        except Exception as error:  # noqa: BLE001  (a bug must not look like the client's)
            request.answer = self._fault(request.call, error)
        finally:
            CALL.reset(before)
        return request

    def begin(
        self, method: str, target: str, headers: dict[bytes, bytes], client: Client
    ) -> Request:
        """Make a request without a route, with its id."""
        address = str(client[0]) if client else None
        call = Call(self.service.traffic, method, target, address, lookup(headers))
        return Request(call, headers, Reservation(self.budget))

    async def answer(self, request: Request) -> Response:
        """Answer a complete request that has an endpoint, within the time that it may take."""
        assert request.endpoint is not None
        call, work = request.call, request.endpoint(self.service, request)
        try:
            if request.timeout_s is None:
                return await work
            return await in_time(work, request.timeout_s, call.began)
        except FoveaError as error:
            return self.error_answer(error)
        except Exception as error:  # noqa: BLE001  (the client gets an answer, whatever fails)
            return self._fault(call, error)

    def _fault(self, call: Call, error: Exception) -> Response:
        """Make the answer to an internal error; its traceback goes to the log only."""
        log.error("%s %r", call.method, call.shown, exc_info=error, extra={"id": call.id})
        return self.error_answer(FoveaError("an internal error; the server's log has the details"))
