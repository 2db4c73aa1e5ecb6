"""Where proxies listen, and where a replica fits."""

import pytest

pytest.importorskip("ray")
from ray.serve.config import HTTPOptions, gRPCOptions

from fovea_cluster.ray.application import fits
from fovea_cluster.ray.proxies import check_same
from fovea_cluster.ray.service import ADD_TO_SERVER
from fovea_preprocess.errors import InvalidOption
from fovea_server.settings import Settings

HTTP = HTTPOptions(host="127.0.0.1", port=8000)
GRPC = gRPCOptions(port=8001, grpc_servicer_functions=[ADD_TO_SERVER])
NO_GRPC = gRPCOptions()


def test_the_settings_of_running_proxies_are_taken():
    check_same(Settings(), HTTP, GRPC)
    check_same(Settings(allow_grpc=False, grpc_port=8009), HTTP, NO_GRPC)


@pytest.mark.parametrize(
    ("given", "grpc", "changes"),
    [
        ({"http_port": 8080}, GRPC, "http_port 8080, grpc_port 8081"),
        ({"http_address": "0.0.0.0"}, GRPC, "http_address 0.0.0.0"),
        ({"grpc_port": 8009}, GRPC, "grpc_port 8009"),
        ({"allow_grpc": False}, GRPC, "allow_grpc False"),
        ({}, NO_GRPC, "allow_grpc True"),
    ],
)
def test_others_are_refused(given, grpc, changes):
    with pytest.raises(InvalidOption) as refused:
        check_same(Settings(**given), HTTP, grpc)
    assert f"cannot change to {changes}: keep" in str(refused.value)
    assert "http_address 127.0.0.1, http_port 8000" in str(refused.value)
    assert "`serve shutdown`" in str(refused.value)


def test_a_replica_fits_on_one_node_and_not_on_the_rest_of_several():
    nodes = [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert fits({"CPU": 1, "GPU": 0}, nodes)
    assert fits({"CPU": 1, "GPU": 1}, nodes)
    assert not fits({"CPU": 2, "GPU": 0}, nodes)
