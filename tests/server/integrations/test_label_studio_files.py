"""Images of Label Studio's tasks: with its token from its own host, and with none from others."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from tests.server.integrations.labelling import PERSON, config, post, predict
from tests.serving import start_server

pytestmark = pytest.mark.real

TOKEN = "0123456789abcdef"


class Site(BaseHTTPRequestHandler):
    """Files as Label Studio has them: for those with the token, some of them elsewhere."""

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        if self.path.startswith("/tasks/7/presign/") or self.path == "/data/moved":
            self.send_response(302)
            self.send_header("Location", server.elsewhere)
            self.end_headers()
        elif "Authorization" in self.headers or server.elsewhere is None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.image)
        else:
            self.send_response(401)
            self.end_headers()

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(images):
    """A Label Studio's files, and those of a cloud that it redirects to."""
    image = images[0].read_bytes()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Site) for _ in range(2)]
    studio, cloud = servers
    for server in servers:
        server.asked, server.image, server.elsewhere = [], image, None
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
    studio.elsewhere = f"{cloud.url}/signed"
    studio.cloud = cloud
    yield studio
    for server in servers:
        server.shutdown()
        server.server_close()


def test_files_of_label_studio_are_fetched_with_its_token(server, site):
    site.asked.clear()
    project = "5.17"
    setup = {"project": project, "schema": "<View/>", "hostname": site.url, "access_token": TOKEN}
    assert post(server, "yolov8n", "setup", **setup).status_code == 200
    xml = config("RectangleLabels", PERSON)
    addresses = (
        "/data/upload/5/bus.jpg",
        f"{site.url}/data/local-files/?d=bus.jpg",
        "s3://bucket/bus.jpg",
        "/data/moved",
        f"{site.cloud.url}/public.jpg",
        # Addresses of another host after the slash, which joining takes for whole ones.
        f"/{site.cloud.url}/public.jpg",
        f"/ {site.cloud.url.removeprefix('http:')}/public.jpg",
    )
    results = predict(server, "yolov8n", xml, *addresses, project=project)
    assert [len(each["result"]) for each in results[:6]] == [4] * 6
    asked = dict(site.asked)
    assert set(asked.values()) == {f"Token {TOKEN}"}
    assert "/data/upload/5/bus.jpg" in asked
    # The token is for Label Studio alone.
    assert {authorization for _, authorization in site.cloud.asked} == {None}


@pytest.mark.parametrize("hostname", ["http://[", "file:///etc", "nowhere"])
def test_what_is_no_address_is_no_label_studio(server, hostname):
    answer = post(server, "yolov8n", "setup", project="6", schema="<View/>", hostname=hostname)
    assert (answer.status_code, "no address of a Label Studio" in answer.text) == (422, True)


def test_a_bad_image_among_good_ones_fails_alone(server, inline):
    xml = config("RectangleLabels", PERSON)
    addresses = (inline, "data:image/jpeg;base64,aGVsbG8=", "/data/upload/1/bus.jpg", inline)
    results = predict(server, "yolov8n", xml, *addresses, project="nobody's")
    assert [bool(each["result"]) for each in results] == [True, False, False, True]
    assert "not an image" in results[1]["error"]
    assert "--label-studio-url" in results[2]["error"]


def test_the_operator_says_where_label_studio_is(api_repository, site, tmp_path):
    flags = (
        "--api=label-studio=yolov8n",
        "--allow-url",
        "--url-allow-host=127.0.0.1",
        f"--label-studio-url={site.url}",
        "--label-studio-token=a.b.c",
    )
    server = start_server(api_repository, tmp_path, flags)
    try:
        site.asked.clear()
        # Strangers cannot have the operator's token sent to them.
        setup = {"project": "1", "hostname": site.cloud.url, "access_token": "x"}
        assert httpx.post(server.url + "/setup", json=setup).status_code == 200
        xml = config("RectangleLabels", PERSON)
        tasks = [{"id": 1, "data": {"photo": "/data/upload/1/bus.jpg"}}]
        given = {"tasks": tasks, "project": "1", "label_config": xml}
        answer = httpx.post(server.url + "/predict", json=given, timeout=60)
        assert answer.json()["results"][0]["result"]
        assert site.asked == [("/data/upload/1/bus.jpg", "Bearer a.b.c")]
    finally:
        server.stop()
    # A request is logged after its answer.
    assert server.log.read_text().count("model='yolov8n' status=200") == 1
