"""How long decode + NMS takes an image, beside one plain pass over the same memory.

    python benchmarks/postprocess.py [--rounds 40] [--json]

"image" has four objects an image, as real outputs have: 60 cells over the threshold, a tail of
low scores everywhere. "crowd" has 100 objects, 1500 cells over it. The batches are [8,84,8400]
and [8,25200,85] float32. The ratio to `array.max()` over the same rows, timed in turn with each
decode, is what can be compared between machines; milliseconds cannot.

"masks" has 20 objects of 640 x 640 pixels, 32 prototypes of 160 x 160, from weights to COCO's run
lengths in an image of that size; the pass is one over the prototypes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.registry import FAMILIES
from fovea_engines.heads.segment import prototype_masks
from fovea_engines.results.mask_encoding import encode_masks
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.letterbox import fit
from fovea_preprocess.spec import PreprocessSpec

BATCH, CLASSES, CELLS, SIZE = 8, 80, 8400, 640.0


def scene(objects: int, boxes: int, seed: int) -> NDArray[np.float32]:
    """One image's boxes, [boxes, 4 + CLASSES]: cx cy w h and class probabilities."""
    rng = np.random.default_rng(seed)
    rows = np.empty((boxes, 4 + CLASSES), dtype=np.float32)
    rows[:, :2] = rng.uniform(0, SIZE, (boxes, 2))
    rows[:, 2:4] = rng.uniform(8, 200, (boxes, 2))
    # What a trained head leaves where nothing is: the bulk far below .001, a few above.
    rows[:, 4:] = 10 ** rng.normal(-5, 0.8, (boxes, CLASSES))
    for cells in np.array_split(rng.permutation(boxes)[: objects * 15], objects):
        centre, side = rng.uniform(50, SIZE - 50, 2), rng.uniform(20, 200, 2)
        rows[cells, :4] = np.concatenate([centre, side]) + rng.normal(0, 3, (len(cells), 4))
        rows[cells, 4 + rng.integers(CLASSES)] = rng.uniform(0.3, 0.95, len(cells))
    return np.minimum(rows, [[*[np.inf] * 4, *[1.0] * CLASSES]]).astype(np.float32)


def yolov8_batch(objects: int) -> NDArray[np.float32]:
    """float32 [BATCH, 84, 8400]."""
    return np.stack([np.ascontiguousarray(scene(objects, CELLS, i).T) for i in range(BATCH)])


def yolov5_batch(objects: int) -> NDArray[np.float32]:
    """float32 [BATCH, 25200, 85]: objectness is the best class, classes are relative to it."""
    batch = []
    for i in range(BATCH):
        rows = scene(objects, 3 * CELLS, i)
        best = rows[:, 4:].max(axis=1, keepdims=True)
        batch.append(np.concatenate([rows[:, :4], best, rows[:, 4:] / best], axis=1))
    return np.stack(batch)


def milliseconds(work: Callable[[int], object], row: int) -> float:
    """CPU time of one call: all of it is in this thread, and neighbours do not count."""
    start = time.thread_time()
    work(row)
    return (time.thread_time() - start) * 1e3


def measure(family: str, batch: NDArray[np.float32], conf: float, rounds: int) -> dict[str, float]:
    """Medians over `rounds`, decode and memory pass interleaved."""
    head = FAMILIES[family].open(("output0",), (int(SIZE), int(SIZE)))
    options = PredictOptions(conf=conf)
    outputs = {"output0": batch}
    decodes, passes = [], []
    for i in range(rounds):
        row = i % BATCH
        passes.append(milliseconds(lambda row: batch[row].max(), row))
        # The pass has pulled this row into the cache: decode another one.
        other = (row + BATCH // 2) % BATCH
        decodes.append(milliseconds(lambda row: head.decode(outputs, row, options), other))
    decode, plain = statistics.median(decodes), statistics.median(passes)
    return {
        "detections": float(len(head.decode(outputs, 0, options))),
        "ms_per_image": round(decode, 3),
        "ms_memory_pass": round(plain, 3),
        "ratio": round(decode / plain, 2),
    }


def measure_masks(objects: int, rounds: int) -> dict[str, float]:
    """The same for masks, on one core."""
    cv2.setNumThreads(1)
    rng = np.random.default_rng(0)
    # Smooth, as trained ones are: noise would make run lengths of single pixels.
    coarse = rng.normal(size=(32, 20, 20)).astype(np.float32)
    prototypes = np.stack([cv2.resize(one, (160, 160)) for one in coarse])
    weights = rng.normal(size=(objects, 32)).astype(np.float32)
    corner, side = rng.uniform(0, 440, (objects, 2)), rng.uniform(20, 200, (objects, 2))
    boxes = np.concatenate([corner, corner + side], axis=1).astype(np.float32)
    back = fit(PreprocessSpec(int(SIZE), int(SIZE)), 640, 640)

    def work(_: int) -> None:
        masks = prototype_masks(prototypes, weights, boxes, (int(SIZE), int(SIZE)))
        list(encode_masks(masks.to_source(back), "rle"))

    spent, passes = [], []
    for _ in range(rounds):
        passes.append(milliseconds(lambda _: prototypes.max(), 0))
        spent.append(milliseconds(work, 0))
    masked, plain = statistics.median(spent), statistics.median(passes)
    return {
        "detections": float(objects),
        "ms_per_image": round(masked, 3),
        "ms_memory_pass": round(plain, 3),
        "ratio": round(masked / plain, 2),
    }


def main() -> None:
    """Measure every case and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    makers = {"yolov8": yolov8_batch, "yolov5": yolov5_batch}
    cases = []
    for family, make in makers.items():
        for kind, objects in (("image", 4), ("crowd", 100)):
            batch = make(objects)
            for conf in (0.25, 0.001):
                figures = measure(family, batch, conf, arguments.rounds)
                cases.append({"family": family, "kind": kind, "conf": conf, **figures})
    masks = measure_masks(20, arguments.rounds)
    cases.append({"family": "masks", "kind": "image", "conf": 0.25, **masks})
    if arguments.json:
        print(json.dumps(cases, indent=2))
        return
    print(f"{'family':8} {'kind':8} {'conf':>6} {'found':>6} {'ms/image':>9} {'pass ms':>8} ratio")
    for case in cases:
        print(
            f"{case['family']:8} {case['kind']:8} {case['conf']:6} {case['detections']:6.0f} "
            f"{case['ms_per_image']:9.3f} {case['ms_memory_pass']:8.3f} {case['ratio']:5.2f}"
        )


if __name__ == "__main__":
    main()
