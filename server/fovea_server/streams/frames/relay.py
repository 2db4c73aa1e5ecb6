"""RTSP by way of this process, so that no camera leads the decoder to another address."""

from __future__ import annotations

import re
import selectors
import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

from fovea_server.streams.frames.address import RTSP_PORTS, SourceAddress

_CHUNK = 1 << 16
# A status that is no plain 1xx, 2xx, or 4xx to 6xx, in whatever FFmpeg may take for the first line
# of an answer: where one begins, the camera decides.
_REDIRECT = re.compile(rb"RTSP/[^ \t\n]*[ \t\f\v]+(?![12456][0-9]{2}[ \t\n])[+-]?[0-9]")


class RtspRelay(threading.Thread):
    """Carries the bytes of one connection between the decoder and the host that was checked.

    FFmpeg follows a redirect without a question, while it opens a camera: the line with its status
    does not get through. The relay speaks TLS to the camera.

    Attributes:
        address: for the decoder, on this machine.
        redirected: the camera led elsewhere, and the connection is over.

    Args:
        address: as `checked` returned it.
        wait_s: time in which the camera must take a connection.

    Raises:
        OSError: it does not.
    """

    def __init__(self, address: SourceAddress, wait_s: float) -> None:
        super().__init__(name="fovea-rtsp", daemon=True)
        url, self.redirected = address.url, False
        scheme = url.scheme.lower()
        place = url.hostname or "", url.port or RTSP_PORTS[scheme]
        self._camera = socket.create_connection(place, wait_s)
        try:
            if scheme == "rtsps":
                # As FFmpeg does: cameras have certificates that they signed themselves.
                host = urlsplit(f"//{address.name}").hostname
                context = ssl._create_unverified_context()
                self._camera = context.wrap_socket(self._camera, server_hostname=host)
            self._door = socket.create_server(("127.0.0.1", 0), backlog=1)
        except OSError:
            self._camera.close()
            raise
        self._door.settimeout(wait_s)
        user, apart, _ = url.netloc.rpartition("@")
        here = f"{user}{apart}127.0.0.1:{self._door.getsockname()[1]}"
        self.address = url._replace(scheme="rtsp", netloc=here).geturl()

    def __enter__(self) -> RtspRelay:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It ends when the decoder has closed its end, or has never come.
        self._door.close()

    def run(self) -> None:
        """Carry until one end is closed."""
        with self._camera, suppress(OSError):
            decoder, _ = self._door.accept()
            with decoder:
                self._carry(decoder)

    def _carry(self, decoder: socket.socket) -> None:
        plays, rest = False, b""
        with selectors.DefaultSelector() as ready:
            for end in (decoder, self._camera):
                ready.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is decoder:
                        if not (asked := decoder.recv(_CHUNK)):
                            return
                        plays = plays or asked.startswith(b"PLAY ")
                        self._camera.sendall(asked)
                        continue
                    if (answered := self._received()) is None:
                        continue
                    if not answered:
                        return
                    if not plays:
                        # FFmpeg takes no notice of "\r", and acts on a line when it is whole.
                        lines, end_of_line, rest = (rest + answered.replace(b"\r", b"")).rpartition(
                            b"\n"
                        )
                        if _REDIRECT.search(lines + end_of_line) or len(rest) > _CHUNK:
                            self.redirected = True
                            return
                    decoder.sendall(answered)

    def _received(self) -> bytes | None:
        """Take all that has come; None: only what TLS keeps to itself, b"": it is over."""
        wait_s = self._camera.gettimeout()
        self._camera.settimeout(0)
        try:
            data = self._camera.recv(_CHUNK)
            # The selector does not know of bytes that TLS holds already.
            while isinstance(self._camera, ssl.SSLSocket) and self._camera.pending():
                data += self._camera.recv(_CHUNK)
            return data
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        finally:
            self._camera.settimeout(wait_s)
