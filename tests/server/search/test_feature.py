"""Indexes that are kept: one that is read slowly holds no other up."""

import threading

import numpy as np

from fovea_server.search.feature import Search
from fovea_server.search.index import VectorIndex

WAIT_S = 30


def test_a_slow_index_does_not_hold_up_others(tmp_path, monkeypatch):
    for name in ("slow", "quick"):
        np.save(tmp_path / f"{name}.npy", np.eye(3, dtype=np.float32))
    begun, go_on, read = threading.Event(), threading.Event(), VectorIndex.read

    def slowly(path):
        if path.stem == "slow":
            begun.set()
            assert go_on.wait(WAIT_S)
        return read(path)

    monkeypatch.setattr(VectorIndex, "read", slowly)
    part = Search()
    slow, quick = (
        threading.Thread(target=part.index, args=(tmp_path, name), daemon=True)
        for name in ("slow", "quick")
    )
    slow.start()
    assert begun.wait(WAIT_S)
    quick.start()
    quick.join(WAIT_S)
    assert not quick.is_alive()
    go_on.set()
    slow.join(WAIT_S)
    assert part.index(tmp_path, "slow") is part.index(tmp_path, "slow")
