"""Compares what annexes give for the names of `fovea.abilities` with what the core calls.

Only mypy reads it: an entry point is Any to it, so no call in the core shows it an annex that has
other arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

import fovea_heads.preprocessing
import fovea_precision.half
from fovea_cardless.plain_engine import open_plain
from fovea_connection.protocol import ServerProtocol
from fovea_drawing.drawing import annotated
from fovea_drawing.open_question import ask
from fovea_drawing.report import write_report
from fovea_engines.build.assemble import Half
from fovea_engines.build.build import ImagesAlone, WriteReport
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel, PreprocessingJudge, SizedNetwork
from fovea_engines.detect.drawing import Annotate
from fovea_engines.detect.heads.recognition import Recognition
from fovea_engines.detect.words import TextEncoder
from fovea_engines.engine import PlainChoice
from fovea_engines.progress import Progress
from fovea_engines.repository.card import EngineCard
from fovea_engines.session import Session
from fovea_extensions.extensions import Extensions
from fovea_extensions.grpc_calls import METHODS
from fovea_extensions.http_endpoints import ROUTES
from fovea_heads.efficient_nms import expand_efficient_nms
from fovea_heads.nms_tail import add_nms_tail
from fovea_lab.edit.any_size import any_size
from fovea_outbound.fetch import Fetcher
from fovea_outbound.tracing import tracer
from fovea_preprocess.errors import InvalidOption
from fovea_server.dataplane.service import MakeExtensions
from fovea_server.grpc.methods import Method
from fovea_server.http.v1.sources import MakeFetcher
from fovea_server.http.v2.routes import Route
from fovea_server.traffic.spans import Tracer
from fovea_tensorrt.rebuild import rebuild
from fovea_words.opening import open_words, own_words
from fovea_words.prompts import of_images

ANY_SIZE: Callable[[onnx.ModelProto], SizedNetwork] = any_size
CONNECTION: Callable[..., asyncio.Protocol] = ServerProtocol
DRAWING: Annotate = annotated
EFFICIENT_NMS: Callable[[onnx.ModelProto], None] = expand_efficient_nms
EXTENSIONS: MakeExtensions = Extensions
FETCHER: MakeFetcher = Fetcher
GRPC_METHODS: Mapping[str, Method] = METHODS
HALF: Half = fovea_precision.half
NMS_TAIL: Callable[[onnx.ModelProto, Recognition], Recognition] = add_nms_tail
OPEN_QUESTION: Callable[[BuildPlan, PreparedModel], InvalidOption] = ask
PLAIN: Callable[[Path, PlainChoice | None], tuple[EngineCard, Session]] = open_plain
PREPROCESSING: PreprocessingJudge = fovea_heads.preprocessing
PROMPTS: ImagesAlone = of_images
REBUILD: Callable[[Path, Progress], EngineCard] = rebuild
REPORT: WriteReport = write_report
TRACER: Callable[[float], Tracer] = tracer
V2_ROUTES: tuple[Route, ...] = ROUTES
WORDS: Callable[[Path, EngineCard, int | None, int | None], TextEncoder | None] = open_words
OWN_WORDS: Callable[[Path, EngineCard, Session], TextEncoder | None] = own_words
