"""Bytes of a client become messages, one at a time; what is held of them is counted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import cast

from websockets.frames import Frame, Opcode

from fovea_preprocess.errors import FoveaError, InvalidRequest, QueueFull
from fovea_server.byte_budget import ByteBudget
from fovea_server.http.v1.body import too_large
from fovea_streams.sockets.wire import Wire

# Bytes that are parsed at once, beyond the payload that is under way: they may be many messages.
_SLICE = 512
_MOST_TEXT = 8192


@dataclass(slots=True, eq=False)
class Message:
    """A file, a text, or the error that says why what came is neither.

    `held` bytes are counted; whoever takes the message gives them back.
    """

    content: bytes | bytearray | str | FoveaError
    held: int = 0


class Assembly:
    """Assembles the frames of a connection.

    Attributes:
        message: the one that is whole and was not taken.
        dropping: messages are dropped.
        held: bytes of a message that is not whole.

    Args:
        most: bytes of a message.
    """

    def __init__(self, wire: Wire, budget: ByteBudget, most: int) -> None:
        self._wire, self._budget, self._most = wire, budget, most
        self.message: Message | None = None
        self.dropping = False
        self.held = 0
        self._input = bytearray()
        self._frames: deque[Frame] = deque()
        self._body: bytes | bytearray = b""
        self._is_text = False
        self._error: FoveaError | None = None

    @property
    def has_room(self) -> bool:
        """Return True if another message may arrive."""
        return self.message is None or self.dropping

    def add(self, data: bytes) -> None:
        """Keep bytes for `advance`."""
        self._input += data

    def advance(self) -> bool:
        """Take one frame, or parse some bytes; returns False where there are none.

        Raises:
            EOFError: the client has closed, or broken the protocol.
        """
        if self._frames:
            self._take(self._frames.popleft())
        elif self._input:
            size = max(_SLICE, self._wire.reader.lacks)
            piece = bytes(self._input[:size])
            del self._input[:size]
            self._wire.receive_data(piece)
            self._frames.extend(cast("list[Frame]", self._wire.events_received()))
            if self._wire.parser_exc is not None:
                raise EOFError
        else:
            return False
        return True

    def count(self) -> None:
        """Count what is held of a message that is not whole."""
        now = len(self._input) + len(self._wire.reader.buffer) + len(self._body)
        more, self.held = now - self.held, now
        if more <= 0:
            self._budget.give_back(-more)
            return
        try:
            self._budget.take(more)
        except QueueFull as full:
            self.held -= more
            self._decline(full)

    def drop(self) -> None:
        """Drop everything, at the end of the connection."""
        self._input.clear()
        self._frames.clear()
        self._budget.give_back(self.held)
        self.held = 0
        if self.message is not None:
            self.give_back(self.message)

    def give_back(self, message: Message) -> None:
        """Count a message as no longer held."""
        self._budget.give_back(message.held)
        message.held = 0

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            raise EOFError
        if self.dropping or frame.opcode in (Opcode.PING, Opcode.PONG):
            return
        # Most messages are a single frame, which is not copied.
        if frame.opcode is Opcode.CONT:
            self._body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
            self._body += frame.data
        else:
            self._is_text, self._body = frame.opcode is Opcode.TEXT, bytes(frame.data)
        reader = self._wire.reader
        if reader.over or len(self._body) > self._most:
            self._decline(too_large(self._most))
            reader.over = False
        elif self._is_text and len(self._body) > _MOST_TEXT:
            self._decline(no_image())
        if frame.fin:
            self._end_message()

    def _decline(self, error: FoveaError) -> None:
        """Drop the message that arrives; its error takes its place."""
        self._error = self._error or error
        self._body = b""
        self._wire.reader.refused = True

    def _end_message(self) -> None:
        body, error = self._body, self._error
        self._body, self._error, self._wire.reader.refused = b"", None, False
        # Counted anew, as its own.
        self.count()
        try:
            if error is not None:
                raise error
            content = body.decode() if self._is_text else body
            self._budget.take(len(body))
            self.message = Message(content, len(body))
        except UnicodeDecodeError:
            self.message = Message(InvalidRequest("the text is not UTF-8"))
        except FoveaError as refused:
            self.message = Message(refused)


def no_image() -> InvalidRequest:
    """Make the error for a text where a frame should be."""
    return InvalidRequest("this is text: send each image as a binary message")
