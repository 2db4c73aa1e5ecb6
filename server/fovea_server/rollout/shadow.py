"""A shadow: a candidate version that runs on live images, in a process beside the server."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

from fovea_preprocess.errors import FoveaError
from fovea_server.dataplane.prediction import Prediction
from fovea_server.rollout.shadow_report import (
    OVER,
    LiveImage,
    ShadowCandidate,
    ShadowDocument,
    ShadowProgress,
    ShadowReport,
    ShadowRequest,
    State,
    decide,
)
from fovea_server.tensors.messages import ImageResult, SentImage
from fovea_server.traffic.call import CALL, may_keep

log = logging.getLogger(__name__)

# Largest number of images in the queue of the candidate.
_QUEUED = 8
_TICK_S = 1.0
_GRACE_S = 2.0
# Timeout in seconds for loading the candidate, and for each image. The candidate runs only when the
# CPU is idle, so both may take long.
_DEADLINE_S = 300
# Number of compared images at the first decision about the limit. Each further decision needs twice
# as many images, because a test that is repeated too often exceeds the limit by chance.
_FIRST_LOOK = 50


class Shadow:
    """Sends live images and their results to a separate process, and stores the process's reports.

    Args:
        request: the request that began the shadow.
        candidate: the version to run.
        waits: returns whether requests to the server wait; then the candidate must not run.
        gone: returns the reason why the comparison cannot continue; an empty text if it can
            continue.
    """

    def __init__(
        self,
        request: ShadowRequest,
        candidate: ShadowCandidate,
        waits: Callable[[], bool],
        gone: Callable[[], str],
    ) -> None:
        self.request, self.candidate = request, candidate
        self.report: ShadowReport | None = None
        self.pictures: dict[str, bytes] = {}
        self.skipped = Counter(waiting=0, busy=0)
        self.state: State = "starting"
        self._reason = ""
        self._waits, self._gone = waits, gone
        self._began = datetime.now(UTC)
        self._images: SimpleQueue[LiveImage | None] = SimpleQueue()
        self._ending = False
        self._look = _FIRST_LOOK
        self._sent, self._unreported = 0, False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """True after the comparison has ended."""
        return self.state in OVER

    def document(self) -> ShadowDocument:
        """Return the present state and the last report."""
        state, limit = self.state, self.request.max_disagreement
        has_result = state in OVER and state != "failed"
        return ShadowDocument(
            **self.request.model_dump(),
            model=self.candidate.model,
            against=self.candidate.against,
            state=state,
            reason=self._reason,
            began=self._began,
            skipped=dict(self.skipped),
            verdict=decide(self.report, limit) if has_result else None,
            report=self.report,
        )

    def offer(self, images: Sequence[SentImage | FoveaError], prediction: Prediction) -> None:
        """Queue a random fraction of a request's images for comparison.

        Call it on the event loop.
        """
        options = prediction.options
        if self.state != "running" or prediction.version != self.candidate.against:
            return
        if options.labels is not None:  # labels in the request change the classes
            return
        for image, result in zip(images, prediction.images, strict=True):
            if isinstance(image, FoveaError) or not isinstance(result, ImageResult):
                continue
            if (found := result.found) is None or random.random() >= self.request.share:
                continue
            if self._images.qsize() >= _QUEUED:
                self.skipped["busy"] += 1
            elif self._waits():
                self.skipped["waiting"] += 1
            else:
                call = CALL.get()
                request_id = "" if call is None else call.id
                self._images.put(LiveImage(image, found, options, request_id, may_keep(call)))

    def stop(self, reason: str) -> None:
        """End the shadow unless it is over, and wait until its process has ended."""
        was_over = self.is_over
        self._ending = True
        self._images.put(None)
        self._thread.join(_GRACE_S)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
        self._thread.join()
        if not was_over:
            self._end("stopped", reason)

    def _run(self) -> None:
        ours, theirs = Pipe()
        # The timeouts cover each send and each receive, because a process that hangs may not even
        # read.
        with socket.socket(fileno=os.dup(ours.fileno())) as channel:
            for wait in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                channel.setsockopt(socket.SOL_SOCKET, wait, struct.pack("ll", _DEADLINE_S, 0))
        with ours:
            command = [
                sys.executable,
                "-P",
                "-m",
                "fovea_server.rollout.shadow_worker",
                str(theirs.fileno()),
            ]
            try:
                with theirs:
                    process = self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # Ctrl-C must reach only the server
                    )
            except OSError as error:
                self._end("failed", f"no process can be started: {error.strerror}")
                return
            with process:
                try:
                    self._converse(ours)
                except BlockingIOError:
                    self._end(
                        "failed",
                        f"version {self.request.version} did not start or process an image within "
                        f"{_DEADLINE_S} s: it hangs, or the machine has no idle CPU time",
                    )
                except (EOFError, OSError):
                    self._end("failed", self._explain_death(process))
                finally:
                    process.kill()

    def _converse(self, worker: Connection) -> None:
        worker.send(self.candidate)
        if reason := worker.recv():
            self._end("failed", reason)
            return
        self.state = "running"
        log.info("shadow test of version %d of model %s started", *self._names)
        checked = time.monotonic()
        while not (self._ending or self.is_over):
            try:
                image = self._images.get(timeout=_TICK_S)
            except Empty:
                image = None
            if image is not None and self._waits():
                self.skipped["waiting"] += 1
            elif image is not None:
                self._send(worker, image)
            if self._unreported and (image is None or self._sent >= self.request.images):
                self._send(worker, None)
            self._judge()
            if image is None or time.monotonic() - checked > _TICK_S:
                checked = time.monotonic()
                if not self._ending and (reason := self._gone()):
                    self._end("failed", reason)

    def _send(self, worker: Connection, image: LiveImage | None) -> None:
        """Send an image for comparison, or None to request a report.

        Store the report of the reply.
        """
        worker.send(image)
        progress: ShadowProgress = worker.recv()
        self._sent += image is not None
        self._unreported = progress.report is None
        if progress.report is not None:
            pictures = self.pictures | progress.pictures
            self.pictures = {one.picture: pictures[one.picture] for one in progress.report.worst}
            self.report = progress.report

    def _judge(self) -> None:
        """End the shadow if it has compared enough images, or if its limit is decided.

        The limit is decided if it is outside the confidence interval of the disagreement.
        """
        if self._sent >= self.request.images:
            self._end("finished", f"{self._sent:,} images were compared")
        report, limit = self.report, self.request.max_disagreement
        if limit is None or report is None or report.interval is None:
            return
        if report.images < self._look:
            return
        while self._look <= report.images:
            self._look *= 2
        if (verdict := decide(report, limit)) != "undecided":
            low, high = report.interval
            self._end(
                "decided",
                f"the disagreement, {low:.2%} to {high:.2%}, is {verdict} the limit of "
                f"{100 * limit:g}%",
            )

    def _explain_death(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        with_what = f"status {code}"
        if code < 0:
            with_what = signal.Signals(-code).name
            if -code == signal.SIGKILL:
                with_what += " (out of memory?)"
        return f"the process of version {self.request.version} ended with {with_what}: see the log"

    def _end(self, state: State, reason: str) -> None:
        if not self.is_over or state == "stopped":
            self.state, self._reason = state, reason
            log.info("shadow test of version %d of model %s ended: %s", *self._names, reason)

    @property
    def _names(self) -> tuple[int, str]:
        return self.request.version, self.candidate.model
