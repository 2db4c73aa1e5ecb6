"""Reads and decodes one source in its own thread, as fast as the frames arrive."""

from __future__ import annotations

import errno
import math
import re
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption
from fovea_server.dataplane.reach import OURS
from fovea_server.streams.frames.address import RTSP_PORTS, SourceAddress

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.container import InputContainer

_CHUNK = 1 << 16
# Pattern of a status line with a redirect or an unusual status: any status other than 1xx, 2xx and
# 4xx to 6xx. It is searched in all text that FFmpeg may read as the first line of a response,
# because the camera decides where that line begins.
_REDIRECT = re.compile(rb"RTSP/[^ \t\n]*[ \t\f\v]+(?![12456][0-9]{2}[ \t\n])[+-]?[0-9]")

_WORDS = {
    errno.ECONNREFUSED: "the connection was refused: check the host and the port",
    errno.ENOENT: "the file does not exist",
    errno.EACCES: "the server may not read the source",
    errno.ENODEV: "the device does not exist",
    errno.EBUSY: "another program uses the device",
    errno.EIO: "the source sends no video, ends the connection, or redirects too often",
    errno.EHOSTUNREACH: "the host is unreachable",
    errno.ETIMEDOUT: "the source does not respond",
    errno.EINVAL: "the source is a playlist, or has an unsupported format",
}
_CLASSES = {
    "HTTPUnauthorizedError": "the user name or the password is wrong",
    "HTTPForbiddenError": "this user has no access to the source",
    "HTTPNotFoundError": "the path of the URL does not exist",
    "ExitError": "the source does not respond, or sends no more frames",
    "InvalidDataError": "the source is not a video, or its video cannot be decoded",
    "DecoderNotFoundError": "the codec of the video is not supported",
    "ProtocolNotFoundError": "the protocol of the URL is not supported",
    "EOFError": "the source ended the connection",
}


# Formats of playlists. FFmpeg may not open them, because they can refer to any file or to an
# unchecked address.
_PLAYLISTS = frozenset(("concat", "dash", "hls", "imf", "rtp", "rtsp", "sap", "sdp", "smooth"))
_FORMATS = "mpjpeg,mjpeg,jpeg_pipe,mov,mp4,matroska,webm,mpegts,avi,flv"
_USUAL_RATE = 25.0
# Largest number of consecutive broken packets. After a fault, a camera normally sends fewer until
# its next key frame.
_MAX_BROKEN = 250
_PROTOCOLS = {
    "rtsp": "rtsp,rtp,srtp,udp,tcp,tls",
    "http": "http,https,httpproxy,tcp,tls",
    "file": "file",
}


class RtspRelay(threading.Thread):
    """Relays one connection between the decoder and the checked host.

    While FFmpeg opens a camera, it follows redirects without a check. The relay does not pass on a
    response with a redirect. If the camera requires TLS, the relay encrypts the connection.

    Args:
        address: address from `check_address`.
        wait_s: timeout for the connection to the camera in seconds.

    Attributes:
        address: URL of the relay on this machine, which the decoder opens.
        redirected: True if the camera sent a redirect, which ends the connection.

    Raises:
        OSError: the camera does not accept the connection.
    """

    def __init__(self, address: SourceAddress, wait_s: float) -> None:
        super().__init__(name="fovea-rtsp", daemon=True)
        url, self.redirected = address.url, False
        scheme = url.scheme.lower()
        place = url.hostname or "", url.port or RTSP_PORTS[scheme]
        self._camera = socket.create_connection(place, wait_s)
        try:
            if scheme == "rtsps":
                # Do not verify the certificate, like FFmpeg, because cameras have self-signed
                # certificates.
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
        # Stop listening. The thread ends when the decoder has closed its end, or if it never
        # connects.
        self._door.close()

    def run(self) -> None:
        """Relay bytes until the camera or the decoder closes its end."""
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
                        if not (sent := decoder.recv(_CHUNK)):
                            return
                        plays = plays or sent.startswith(b"PLAY ")
                        self._camera.sendall(sent)
                        continue
                    if (answered := self._receive()) is None:
                        continue
                    if not answered:
                        return
                    if not plays:
                        # FFmpeg ignores carriage returns, and processes a line when it is complete.
                        lines, end_of_line, rest = (rest + answered.replace(b"\r", b"")).rpartition(
                            b"\n"
                        )
                        if _REDIRECT.search(lines + end_of_line) or len(rest) > _CHUNK:
                            self.redirected = True
                            return
                    decoder.sendall(answered)

    def _receive(self) -> bytes | None:
        """Return all received bytes, or b"" at the end of the connection.

        If only TLS's own messages have arrived, return None.
        """
        wait_s = self._camera.gettimeout()
        self._camera.settimeout(0)
        try:
            data = self._camera.recv(_CHUNK)
            # Read the bytes that TLS has already buffered, because the selector does not report
            # them.
            while isinstance(self._camera, ssl.SSLSocket) and self._camera.pending():
                data += self._camera.recv(_CHUNK)
            return data
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        finally:
            self._camera.settimeout(wait_s)


class SourceFailed(Exception):
    """Raised if a source cannot be read.

    The message has the reason, but not the source's address.
    """


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings for reading a source.

    Attributes:
        every_s: mean time in seconds between two frames that are taken; 0 to take all frames.
        transport: transport for RTSP: "tcp" or "udp".
        open_s: timeout in seconds for opening the source.
        stall_s: time in seconds without a frame after which the source is treated as lost.
        most_pixels: largest number of pixels of a frame.
    """

    every_s: float = 0.0
    transport: str = "tcp"
    open_s: float = 10.0
    stall_s: float = 5.0
    most_pixels: int = 64_000_000


@dataclass(frozen=True, slots=True, eq=False)
class RawFrame:
    """A decoded frame: image, time in the stream, and time of arrival from `time.monotonic`.

    A frame of a file always has a time, and the times increase.
    """

    picture: VideoFrame
    pts_s: float | None
    came: float


class FrameSampler:
    """Chooses frames at a mean rate: in each time step it takes the first frame."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = -math.inf

    def takes(self, now_s: float) -> bool:
        """Return whether to take a frame. `now_s` must not decrease from call to call."""
        # A frame that arrives slightly early belongs to the next step.
        if now_s < self._next_s - 0.05 * self._every_s:
            return False
        # After a gap, start the steps at the current time. Otherwise many frames would be taken at
        # once.
        behind = now_s - self._next_s > self._every_s
        self._next_s = (now_s if behind else self._next_s) + self._every_s
        return True


class Position:
    """Increasing times for the frames of a file.

    Raw H.264 has no times. In other files the times can decrease, if frames were copied in the
    wrong order or recordings were joined. The time of such a frame is computed from the previous
    frame and the frame rate.
    """

    def __init__(self, stream: VideoStream) -> None:
        rate = stream.guessed_rate or stream.average_rate
        self._usual_s = 1 / float(rate) if rate else 1 / _USUAL_RATE
        self._next_s, self._last_s = 0.0, -math.inf

    def of(self, picture: VideoFrame) -> float:
        """Return the time of the next frame in the video, in seconds."""
        given_s = picture.time
        time_s = self._next_s if given_s is None or given_s <= self._last_s else given_s
        length_s = float((picture.duration or 0) * (picture.time_base or 0))
        self._last_s, self._next_s = time_s, time_s + (length_s if length_s > 0 else self._usual_s)
        return time_s


def require_av() -> None:
    """Raise InvalidOption if PyAV is not installed."""
    try:
        import av  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidOption(
            "cameras and streams need packages that are not installed (pip install "
            f"'fovea-serve[streams]'): {install_extra('streams')}"
        ) from None


class FrameReader(threading.Thread):
    """Decodes a source until the thread is stopped or the source ends.

    Args:
        address: address from `check_address`.
        reading: settings for reading the source.
        put: function that receives each frame. For a file it may block until the previous frame was
            taken.
        skipped: function that is called for each packet that cannot be decoded.
        ended: function that is called at the end: with None after a file, otherwise with the
            reason.
    """

    def __init__(
        self,
        address: SourceAddress,
        reading: SourceSettings,
        put: Callable[[RawFrame], None],
        skipped: Callable[[], None],
        ended: Callable[[SourceFailed | None], None],
    ) -> None:
        super().__init__(name="fovea-frames", daemon=True)
        self._address, self._reading, self._put = address, reading, put
        self._skipped, self._ended = skipped, ended
        self.stopped = threading.Event()

    def run(self) -> None:
        """Read and decode the source. `threading` calls this method."""
        import av

        reason: SourceFailed | None = None
        try:
            self._read()
        except SourceFailed as error:
            reason = error
        except (av.FFmpegError, OSError) as error:
            # Do not use the text of the error, because it contains the address with the password.
            words = _CLASSES.get(type(error).__name__) or _WORDS.get(error.errno or 0)
            reason = SourceFailed(words or (error.strerror or type(error).__name__).lower())
        except Exception as error:  # noqa: BLE001  (the stream reports any error)
            reason = SourceFailed(f"the video cannot be decoded: {type(error).__name__}")
        if not self.stopped.is_set():
            self._ended(reason)

    def _read(self) -> None:
        address = self._address
        if address.kind != "rtsp" or not address.name:
            return self._decode(address.text)
        with RtspRelay(address, self._reading.open_s) as relay:
            try:
                return self._decode(relay.address)
            finally:
                if relay.redirected:
                    raise SourceFailed("the camera redirects to another URL: use that URL")

    def _decode(self, text: str) -> None:
        import av

        reading, address = self._reading, self._address
        options = _options(address, reading)
        limits = (reading.open_s, reading.stall_s) if address.live else None
        form = {"device": "v4l2", "rtsp": "rtsp"}.get(address.kind)
        with av.open(text, format=form, options=options, timeout=limits) as container:
            if not container.streams.video:
                raise SourceFailed("the source has no video")
            video = container.streams.video[0]
            # Do not decode several frames in parallel ("FRAME"), because that would delay frames.
            video.thread_type = "SLICE"
            sampler, position = FrameSampler(reading.every_s), Position(video)
            # The decoder makes up times for MJPEG over HTTP, which has none.
            timeless, began = container.format.name == "mpjpeg", time.monotonic()
            for picture in self._pictures(container, video):
                if self.stopped.is_set():
                    return
                if picture.width * picture.height > reading.most_pixels:
                    raise SourceFailed(
                        f"the frames have {picture.width} x {picture.height} pixels, but the "
                        f"limit is {reading.most_pixels / 1e6:g} megapixels "
                        "(--max-megapixels)"
                    )
                came = time.monotonic()
                if address.live:
                    time_s = came - began if timeless else picture.time
                else:
                    time_s = position.of(picture)
                if sampler.takes(came if address.live or time_s is None else time_s):
                    self._put(RawFrame(picture, time_s, came))
        if address.live:
            raise SourceFailed("it ended")

    def _pictures(self, container: InputContainer, video: VideoStream) -> Iterator[VideoFrame]:
        """Yield the decoded frames. Skip packets that cannot be decoded, as video players do.

        Raises:
            FFmpegError: no packet of a file can be decoded, or a camera sends too
                many broken packets.
        """
        import av

        seen, in_a_row = False, 0
        fault: av.FFmpegError | None = None
        for packet in container.demux(video):
            try:
                pictures = packet.decode()
            except av.FFmpegError as error:
                fault, in_a_row = error, in_a_row + 1
                self._skipped()
                if self._address.live and in_a_row > _MAX_BROKEN:
                    raise
                continue
            if pictures:
                seen, in_a_row = True, 0
            yield from pictures
        if fault is not None and not seen:
            raise fault


def _options(address: SourceAddress, reading: SourceSettings) -> dict[str, str]:
    """Return options that allow FFmpeg to open only this source."""
    import av

    if address.kind == "device":
        return {}
    options = {"protocol_whitelist": _PROTOCOLS[address.kind]}
    if address.kind == "rtsp":
        # Detect the image size from the first second of the video, because FFmpeg's default
        # analysis takes five seconds. The relay does not support UDP.
        transport = "tcp" if address.name else reading.transport
        return options | {"rtsp_transport": transport, "analyzeduration": "1000000"}
    if address.kind == "file":
        formats = sorted(av.formats_available - _PLAYLISTS)
        return options | {"format_whitelist": ",".join(formats)}
    options["format_whitelist"] = _FORMATS
    headers = dict(OURS)
    if address.name:
        # `check_address` has already followed and checked all redirects, so FFmpeg opens the last
        # URL.
        options["max_redirects"], headers["Host"] = "0", address.name
    options["headers"] = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return options
