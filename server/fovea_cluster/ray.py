"""The applications of `fovea_server.ray`, where configurations of 0.1 look for them."""

from fovea_server.ray import build, build_fronts

__all__ = ["build", "build_fronts"]
