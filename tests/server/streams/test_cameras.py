"""Frames of real servers of RTSP and HTTP, of files, and of what is none of these."""

import asyncio
import re
import socket
import socketserver
import ssl
import threading
import wave
from contextlib import aclosing, nullcontext
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import av
import pytest
from tests.certificates import make_pair
from tests.server.streams.conftest import mjpeg_camera, rtsp_server, write_moving_scene
from tests.server.streams.walks import until
from tests.serving import free_ports

from fovea_preprocess.errors import NotFound
from fovea_server.dataplane.reach import EVERYWHERE
from fovea_server.streams.cameras.config import StreamConfig
from fovea_server.streams.cameras.stream import CameraStream, cancel_and_wait
from fovea_server.streams.frames.address import SourceAddress
from fovea_server.streams.frames.camera import Camera, SourceState
from fovea_server.streams.frames.reader import SourceSettings

pytestmark = pytest.mark.real


def camera(address, **reading):
    given = {"open_s": 5.0, "stall_s": 2.0, **reading}
    return Camera(SourceAddress.parse(address), SourceSettings(**given), reach=EVERYWHERE)


async def first(source, count):
    """So many frames; TimeoutError after two minutes."""
    frames = []
    async with asyncio.timeout(120), aclosing(source.frames()) as coming:
        async for frame in coming:
            frames.append(frame)
            if len(frames) == count:
                break
    return frames


async def reason_of(source):
    """Wait until a camera is lost, and return the reason."""
    said = asyncio.get_running_loop().create_future()

    def look():
        if source.state not in (SourceState.CONNECTING, SourceState.LIVE) and not said.done():
            said.set_result((source.state, source.reason))

    source._changed = look
    task = asyncio.create_task(first(source, 1000))
    try:
        async with asyncio.timeout(120):
            return await said
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    ("at", "address", "transport"),
    [
        (0, "rtsp://{}/video", "tcp"),
        (0, "RTSP://{}/video", "udp"),
        (1, "rtsp://viewer:s3cret@{}/video", "udp"),
        (1, "rtsp://porch:p%40s%3As%231%2F50%25@{}/video", "tcp"),
        (1, "rtsp://porch:p%40s:s%231%2F50%@{}/video", "tcp"),
    ],
)
def test_rtsp(rtsp, at, address, transport):
    source = camera(address.format(rtsp[at]), transport=transport)
    # As it is once its name was looked up.
    source.address = source.address.at("127.0.0.1")
    assert source.address.name == rtsp[at]
    frames = asyncio.run(first(source, 5))
    assert source.state is SourceState.LIVE
    assert {f.image.pixels.shape for f in frames} == {(240, 320, 3)}
    assert [f.number for f in frames] == list(range(5))
    assert sorted(f.pts_s for f in frames) == [f.pts_s for f in frames]


@pytest.mark.parametrize(
    ("at", "path", "words"),
    [
        (1, "viewer:s3cre@{}/video?token=s3cre", "user name or the password is wrong"),
        (0, "{}/silent", "no frame arrived|no more frames"),
        (0, "{}/sound", "the source has no video"),
    ],
)
def test_a_camera_of_rtsp_without_frames_says_why(rtsp, at, path, words):
    silent = {"open_s": 3.0} if "silent" in path else {"open_s": 30.0, "stall_s": 30.0}
    source = camera(f"rtsp://{path.format(rtsp[at])}", **silent)
    state, reason = asyncio.run(reason_of(source))
    assert state is SourceState.WAITING
    assert re.search(words, reason)
    assert "s3cre" not in f"{source.address} {source.address!r} {source.reason}"


def test_the_newest_frame_wins(mjpeg):
    async def slow():
        source, seen = camera(f"http://{mjpeg}/video"), []
        async with aclosing(source.frames()) as coming:
            async for frame in coming:
                seen.append((round(frame.image.pixels[0, 0, 0] / 8), source.dropped))
                if len(seen) == 4:
                    break
                # Some frames come meanwhile: a queue would give the next one.
                await asyncio.sleep(0.3)
        return seen

    seen = asyncio.run(slow())
    assert seen[-1][1] > 5
    # Each is the one behind all that were dropped; one may be dropped before it is counted.
    for (a, before), (b, dropped) in pairwise(seen):
        assert (b - a - (dropped - before)) % 32 in (0, 1, 2)


def test_every_takes_fewer_frames(mjpeg):
    frames = asyncio.run(first(camera(f"http://{mjpeg}/video", every_s=0.2), 4))
    assert all(each.came - frames[0].came >= 0.2 * n - 0.015 for n, each in enumerate(frames))
    # MJPEG has no times: those of arrival count.
    first_s, began = frames[0].pts_s, frames[0].came
    assert [each.pts_s - first_s for each in frames] == pytest.approx(
        [each.came - began for each in frames]
    )


@pytest.mark.parametrize("fps", [5, 8, 10, 12.5, 30])
def test_a_video_is_seen_at_the_rate_that_is_asked(tmp_path, fps):
    clip, seconds = tmp_path / "clip.avi", 8
    write_moving_scene(clip, int(12.5 * seconds), 1, fps=12.5)
    frames = asyncio.run(first(camera(str(clip), every_s=1 / fps), 1000))
    assert len(frames) == min(fps, 12.5) * seconds
    if fps <= 12.5:
        late = [each.pts_s - n / fps for n, each in enumerate(frames)]
        assert -0.05 / fps <= min(late) <= max(late) < 0.08


def test_a_camera_is_seen_at_the_rate_that_is_asked():
    with mjpeg_camera(every_s=0.08) as port:
        source = camera(f"http://127.0.0.1:{port}/video", every_s=0.2)
        frames = asyncio.run(first(source, 11))
    sent = [round(each.image.pixels[0, 0, 0] / 8) for each in frames]
    # It sends 12.5 a second at most: one frame of 2.5, where each third would be too few.
    assert sum((b - a) % 32 for a, b in pairwise(sent)) < 3 * 10


def test_a_camera_that_is_lost_comes_back(rtsp_ports):
    ports = free_ports(len(rtsp_ports))
    source = camera(f"rtsp://127.0.0.1:{ports[0]}/video")

    async def run():
        async with asyncio.timeout(90), aclosing(source.frames()) as coming:
            for lost in range(3):
                with rtsp_server(ports):
                    while not source.reconnects >= lost:
                        await anext(coming)
                    assert await anext(coming)
                    assert source.state is SourceState.LIVE

    asyncio.run(run())
    assert source.reconnects >= 2


def test_a_camera_that_is_lost_takes_no_frame_from_another():
    [away] = free_ports(1)

    async def run(port):
        lost, other = (camera(f"http://127.0.0.1:{each}/video") for each in (away, port))
        grown = {lost: [0, 0], other: [0, 0]}

        async def follow(source):
            """Sum up how the number that a camera sends grows, and that of frames that came."""
            before = None
            async with aclosing(source.frames()) as coming:
                async for frame in coming:
                    now = round(frame.image.pixels[0, 0, 0] / 8), source.came
                    if before is not None:
                        grown[source][0] += (now[0] - before[0]) % 32
                        grown[source][1] += now[1] - before[1]
                    before = now

        tasks = [asyncio.create_task(follow(each)) for each in (lost, other)]
        for count in range(3):
            with mjpeg_camera(away, 0.1):
                await until(lambda: lost.state is SourceState.LIVE)
            await until(lambda so_far=count: lost.reconnects > so_far)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert other.reconnects == 0
        return grown[other]

    with mjpeg_camera(every_s=0.1) as port:
        sent, came = asyncio.run(run(port))
    # Every frame that was sent came; one may be counted with the frame before it.
    assert abs(sent - came) <= 1
    assert came > 5


def test_a_file_is_read_whole(shared):
    source = camera(str(shared / "data" / "video" / "car-detection.mp4"), every_s=0.5)

    async def run():
        return [frame.pts_s async for frame in source.frames()]

    times = asyncio.run(run())
    assert len(times) > 10
    assert all(b - a >= 0.45 for a, b in pairwise(times))
    assert (source.state, source.dropped) == (SourceState.ENDED, 0)


def test_a_part_that_is_no_picture_is_skipped(mjpeg):
    source = camera(f"http://{mjpeg}/broken")
    frames = asyncio.run(first(source, 30))
    assert source.reconnects == 0
    assert source.broken >= 5
    assert [f.number for f in frames] == list(range(30))


def copied(clip, path, times=None):
    """Copy a video without encoding it; its times are those that are given, in milliseconds."""
    with av.open(str(clip)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                packet.stream = stream
                if times is not None:
                    packet.time_base = Fraction(1, 1000)
                    packet.pts = packet.dts = times(number)
                    packet.duration = times(number + 1) - times(number)
                target.mux(packet)
    return path


def raw_h264(clip, path):
    """Write the video of an mp4 as raw H.264, which has no times."""
    with av.open(str(clip)) as source, path.open("wb") as target:
        stream = source.streams.video[0]
        annexb = av.BitStreamFilterContext("h264_mp4toannexb", stream)
        for packet in source.demux(stream):
            for each in annexb.filter(packet if packet.size else None):
                target.write(bytes(each))
    return path


def times_of(path, every_s=0.0):
    source = camera(str(path), every_s=every_s)

    async def run():
        return [frame.pts_s async for frame in source.frames()]

    times = asyncio.run(run())
    assert source.state is SourceState.ENDED, source.reason
    return times


def test_raw_h264_has_the_times_of_its_frames(shared, tmp_path):
    clip = shared / "data" / "video" / "car-detection.mp4"
    raw = raw_h264(clip, tmp_path / "raw.264")
    for every_s in (0, 0.2):
        assert times_of(raw, every_s) == pytest.approx(times_of(clip, every_s), abs=1e-3)


def test_times_that_go_back_drop_no_frame(shared, tmp_path):
    """Frames in the order in which they are decoded, with the times of that order."""
    clip = shared / "data" / "video" / "bottle-detection.mp4"
    raw = raw_h264(clip, tmp_path / "raw.264")
    wrong = copied(raw, tmp_path / "wrong.mp4", lambda number: round(1000 * number / 29.83))
    times = times_of(wrong)
    assert all(b > a for a, b in pairwise(times))
    assert times == pytest.approx(times_of(clip), abs=0.2)
    assert len(times_of(wrong, 0.2)) == pytest.approx(len(times_of(clip, 0.2)), abs=1)


def test_recordings_that_were_joined_go_on(shared, tmp_path):
    clip = shared / "data" / "video" / "car-detection.mp4"
    one = copied(clip, tmp_path / "one.ts")
    joined = tmp_path / "joined.ts"
    joined.write_bytes(2 * one.read_bytes())
    times = times_of(joined)
    assert len(times) == 2 * 377
    assert times == pytest.approx([times[0] + n * 0.08 for n in range(2 * 377)], abs=0.2)


def test_a_file_with_broken_frames_is_read_to_its_end(tmp_path):
    clip = tmp_path / "clip.avi"
    write_moving_scene(clip, 40, 1)
    data = bytearray(clip.read_bytes())
    starts = [found.start() for found in re.finditer(b"\xff\xd8\xff", data)]
    for number in (5, 6, 30):
        data[starts[number] : starts[number + 1] - 16] = bytes(
            starts[number + 1] - 16 - starts[number]
        )
    clip.write_bytes(data)
    source = camera(str(clip))
    assert len(asyncio.run(first(source, 100))) == 37
    reason = "the file has ended, and 3 frames could not be decoded"
    assert (source.state, source.reason) == (SourceState.ENDED, reason)


def test_what_is_no_video_fails_with_a_reason(tmp_path):
    sound, text, unknown, nobody = (
        tmp_path / name for name in ("sound.wav", "text.mp4", "unknown.avi", "nobody.mp4")
    )
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    text.write_text("no video")
    write_moving_scene(tmp_path / "known.avi", 3, 1)
    unknown.write_bytes((tmp_path / "known.avi").read_bytes().replace(b"MJPG", b"ZZZZ"))
    for path, words in (
        (sound, "the source has no video"),
        (text, "the source is not a video"),
        (unknown, "codec of the video is not supported"),
        (nobody, "file does not exist"),
    ):
        source = camera(str(path))
        assert asyncio.run(first(source, 1)) == []
        assert source.state is SourceState.FAILED
        assert words in source.reason


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("locked", "user name or the password is wrong"),
        ("nothing", "path of the URL does not exist"),
        ("page", "sends no video, ends the connection"),
        ("stalled", "no frame arrived for 1 s"),
        ("mute", "does not respond|no frame arrived for 1 s"),
        ("loop", "redirects too often"),
        ("huge", "7680 x 4320 pixels, but the limit is 20 megapixels .--max-megapixels"),
    ],
)
def test_each_fault_has_a_reason(mjpeg, path, words):
    limits = {"open_s": 20.0 if path == "huge" else 1.0, "stall_s": 1.0}
    limits["most_pixels"] = 20_000_000
    state, reason = asyncio.run(reason_of(camera(f"http://{mjpeg}/{path}", **limits)))
    assert state is SourceState.WAITING
    assert re.search(words, reason)


def test_the_decoder_follows_no_redirect(mjpeg):
    """What was checked might redirect the next time."""
    source = camera(f"http://{mjpeg}/away")
    source.address = SourceAddress("http", f"http://{mjpeg}/away", mjpeg)
    assert asyncio.run(reason_of(source))[0] is SourceState.WAITING


def test_a_playlist_leads_nowhere(tmp_path):
    asked = []
    with mjpeg_camera(asked=asked) as port:
        state, reason = asyncio.run(reason_of(camera(f"http://127.0.0.1:{port}/playlist")))
        file = tmp_path / "clip.m3u8"
        head = "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n"
        file.write_text(f"{head}http://127.0.0.1:{port}/private/a.ts\n#EXT-X-ENDLIST\n")
        of_file = asyncio.run(reason_of(camera(str(file))))
        assert asyncio.run(first(camera(f"http://127.0.0.1:{port}/still"), 1))
    assert asked == ["/playlist", "/still"]
    assert state is SourceState.WAITING
    assert reason == of_file[1] == "the source is a playlist, or has an unsupported format"


REDIRECT = "RTSP/1.0 302 Moved\r\nCSeq: {seq}\r\nLocation: rtsp://127.0.0.1:{port}/x\r\n\r\n"


class Redirecting(socketserver.StreamRequestHandler):
    """A camera that redirects the decoder to `server.target`, behind its answer to OPTIONS."""

    def handle(self):
        while line := self.rfile.readline():
            method, seq = line.split()[0], b"1"
            while (line := self.rfile.readline()).strip():
                if line.startswith(b"CSeq:"):
                    seq = line.split()[1]
            answer = f"RTSP/1.0 200 OK\r\nCSeq: {seq.decode()}\r\n\r\n"
            if method == b"DESCRIBE":
                answer = REDIRECT.format(seq=seq.decode(), port=self.server.target)
                if self.server.hidden:
                    answer = "$\0\0\4abcd" + answer.replace("RTSP", "RT\rSP")
            self.wfile.write(answer.encode())


@pytest.mark.parametrize(("scheme", "hidden"), [("rtsp", False), ("rtsp", True), ("rtsps", False)])
def test_a_camera_leads_the_decoder_nowhere(scheme, hidden, tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as private,
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), Redirecting) as server,
    ):
        private.setblocking(False)
        server.target, server.hidden = private.getsockname()[1], hidden
        if scheme == "rtsps":
            key, certificate = make_pair(tmp_path, "camera")
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, key)
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            place = f"127.0.0.1:{server.server_address[1]}"
            source = camera(f"{scheme}://{place}/video")
            source.address = SourceAddress("rtsp", f"{scheme}://{place}/video", place)
            state, reason = asyncio.run(reason_of(source))
        finally:
            server.shutdown()
        with pytest.raises(BlockingIOError):
            private.accept()
    assert state is SourceState.WAITING
    assert reason == "the camera redirects to another URL: use that URL"


def test_a_camera_is_asked_again_whatever_fails(mjpeg, caplog):
    source = camera(f"http://{mjpeg}/video")
    source._turn = lambda: 1 / 0

    async def run():
        task = asyncio.create_task(first(source, 1))
        await until(lambda: source.reconnects > 1)
        source._turn = nullcontext
        return await task

    assert asyncio.run(run())
    assert source.state is SourceState.LIVE
    assert caplog.text.count("the source cannot be read: ZeroDivisionError") == 1


def test_a_stream_goes_on_whatever_a_frame_fails_of(mjpeg, caplog):
    class Models:
        fault = RuntimeError("s3cret")

        def get(self, name):
            raise self.fault

    models = Models()
    config = StreamConfig.parse("door", {"source": f"http://{mjpeg}/video", "model": "any"})
    stream = CameraStream(
        config, SimpleNamespace(models=models), SimpleNamespace(of=nullcontext), reach=EVERYWHERE
    )

    async def run():
        task = asyncio.create_task(stream.run())
        await until(lambda: stream.refused > 3)
        first_state = stream.state
        models.fault = NotFound("there is no model")
        await until(lambda: stream.state == ("failed", "there is no model"))
        await cancel_and_wait(task)
        return first_state

    assert asyncio.run(run()) == ("refused", "a frame could not be processed: RuntimeError")
    assert caplog.text.count("Traceback") == 1


def test_schemes_are_the_same_in_any_case(mjpeg, tmp_path):
    write_moving_scene(tmp_path / "a clip.avi", 3, 1)
    assert asyncio.run(first(camera(f"Http://{mjpeg}/video"), 1))
    assert len(asyncio.run(first(camera(f"FILE://{tmp_path}/a%20clip.avi"), 9))) == 3
    (frame,) = asyncio.run(first(camera(f"http://{mjpeg}/huge", open_s=20.0), 1))
    assert frame.image.pixels.shape == (4320, 7680, 3)
