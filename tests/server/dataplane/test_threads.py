"""Loads and scrapes have threads of their own, and wait for none that requests have taken."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from fovea_preprocess.errors import LoadFailed
from fovea_server.app import build_app
from fovea_server.metrics.listener import MetricsServer
from fovea_server.settings import ModelControlMode, Settings


@contextmanager
def all_threads_taken() -> Iterator[None]:
    """The running loop's own threads do something else."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        loop.run_in_executor(None, over.wait)
        try:
            yield
        finally:
            over.set()


def test_models_are_loaded_and_unloaded(tmp_path):
    settings = Settings(model_repository=tmp_path, model_control_mode=ModelControlMode.EXPLICIT)
    models = build_app(settings).service.models

    async def ask() -> None:
        with all_threads_taken():
            await models.unload("nobody")
            with pytest.raises(LoadFailed):
                await models.load("nobody")

    asyncio.run(asyncio.wait_for(ask(), 30))


def test_metrics_are_told(tmp_path):
    settings = Settings(model_repository=tmp_path, metrics_port=0)
    server = MetricsServer(build_app(settings).service)

    async def ask() -> httpx.Response:
        await server.start()
        with all_threads_taken():
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{server.port}/metrics")
            await server.stop(5)
        return answer

    answer = asyncio.run(asyncio.wait_for(ask(), 30))
    assert "nv_inference_request_success" in answer.text
