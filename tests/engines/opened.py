"""A graph, opened on a backend, with what makes its input of images and boxes of its output."""

import numpy as np

from fovea_engines.backends.registry import get_backend, open_session
from fovea_engines.heads.recognise import open_head
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_engines.results.detections import Detections
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.preprocessor import Preprocessor


class Opened:
    """A context manager; boxes are in pixels of the input."""

    def __init__(self, graph, recognition, spec, backend, folder, rows=1):
        folder.mkdir()
        file = get_backend(backend).compile(graph.SerializeToString(), folder)
        self.session = open_session(backend, file, max_batch=rows)
        self.head = open_head(recognition, self.session.inputs)
        self.preprocessor = Preprocessor(spec)
        self.input = graph_inputs(graph)[0].name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()

    def infer(self, *images):
        spec = self.preprocessor.spec
        batch = np.empty((len(images), *spec.row_shape), spec.dtype)
        for pixels, row in zip(images, batch, strict=True):
            self.preprocessor(pixels, row)
        return self.session.infer({self.input: batch})

    def detect(self, *images, **options) -> list[Detections]:
        outputs = self.infer(*images)
        asked = PredictOptions(**options)
        return [self.head.decode(outputs, row, asked) for row in range(len(images))]


def assert_identical(have: Detections, want: Detections, pixels: float = 1e-3) -> None:
    assert have.class_ids.tolist() == want.class_ids.tolist()
    np.testing.assert_allclose(have.boxes, want.boxes, rtol=0, atol=pixels)
    np.testing.assert_allclose(have.scores, want.scores, rtol=0, atol=1e-5)
