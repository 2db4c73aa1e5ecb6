"""A real RTSP server, for the Python of the system: `/usr/bin/python3 rtsp_server.py PORT PORT`.

On the first port /video shows a moving ball, /scene a scene of the demo, /silent sends no frame,
and /sound has no video. On the second port /video needs user and password. The program prints a
line when it listens.
"""

import sys
from pathlib import Path

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

BALL = (
    "videotestsrc is-live=true pattern=ball"
    " ! video/x-raw,format=I420,width=320,height=240,framerate=25/1 ! jpegenc"
)
SCENE = Path(__file__).parents[3] / "server" / "fovea_server" / "demo" / "scene-1.jpg"
STILL = (
    f"multifilesrc location={SCENE} loop=true caps=image/jpeg,framerate=10/1"
    " ! jpegdec ! videoconvert ! video/x-raw,format=I420 ! jpegenc quality=95"
)
LAUNCH = {
    "/video": f"( {BALL} ! rtpjpegpay name=pay0 )",
    "/scene": f"( {STILL} ! rtpjpegpay name=pay0 )",
    "/silent": f"( {BALL} ! valve drop=true ! rtpjpegpay name=pay0 )",
    "/sound": "( audiotestsrc is-live=true ! mulawenc ! rtppcmupay name=pay0 )",
}


def serve(port: str, auth: GstRtspServer.RTSPAuth | None) -> GstRtspServer.RTSPServer:
    server = GstRtspServer.RTSPServer(service=port, address="127.0.0.1")
    for path, launch in LAUNCH.items():
        factory = GstRtspServer.RTSPMediaFactory(shared=True, launch=launch)
        if auth is not None:
            factory.add_role_from_structure(
                Gst.Structure.from_string(
                    "viewer, media.factory.access=true, media.factory.construct=true"
                )[0]
            )
        server.get_mount_points().add_factory(path, factory)
    server.set_auth(auth)
    server.attach(None)
    return server


def main(port: str, locked_port: str) -> None:
    Gst.init(None)
    auth, token = GstRtspServer.RTSPAuth(), GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "viewer")
    for user, password in (("viewer", "s3cret"), ("porch", "p@s:s#1/50%")):
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    servers = serve(port, None), serve(locked_port, auth)
    print("listening on", *(server.get_bound_port() for server in servers), flush=True)  # noqa: T201
    GLib.MainLoop().run()


main(*sys.argv[1:3])
