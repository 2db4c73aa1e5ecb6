"""Files of MOTChallenge, and HOTA, IDF1 and MOTA as the package `trackers` computes them."""

from trackers.eval import evaluate_mot_sequences

METRICS = ["CLEAR", "HOTA", "Identity"]
COUNTS, OF_NO_MATTER = 1, 8
"""Classes: one that is to be found, and one that may be or not."""


def row(frame, number, box, kind=COUNTS):
    """A line: the frame from 0, the id, x1 y1 x2 y2, and the class."""
    x1, y1, x2, y2 = box
    return f"{frame + 1},{number},{x1},{y1},{x2 - x1},{y2 - y1},1,{kind},1"


def rows_of(frames):
    """Lines of frames of tracked objects; those without an id are left out."""
    return [
        row(frame, number, box)
        for frame, found in enumerate(frames)
        for number, box in zip(found.track_ids.tolist(), found.boxes.tolist(), strict=True)
        if number > 0
    ]


def figures(folder, truth, tracked):
    """HOTA, IDF1 and MOTA of scenes together, whose lines are given by name."""
    for kind, scenes in (("truth", truth), ("tracked", tracked)):
        (folder / kind).mkdir(parents=True)
        for name, rows in scenes.items():
            (folder / kind / f"{name}.txt").write_text("\n".join(rows))
    found = evaluate_mot_sequences(folder / "truth", folder / "tracked", metrics=METRICS).aggregate
    return {"HOTA": found.HOTA.HOTA, "IDF1": found.Identity.IDF1, "MOTA": found.CLEAR.MOTA}
