"""Has `fovea` forked by the process that listens at an address, and is like it: takes its signals,
and ends as it does. Python runs this file without its site: see tests/forked.py.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

address, run, *arguments = sys.argv[1:]
given = {
    "run": run,
    "arguments": arguments,
    "cores": [*os.sched_getaffinity(0)],
    "folder": os.getcwd(),  # noqa: PTH109
    "variables": dict(os.environ),
}
signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
reader, writer = os.pipe()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
    channel.connect(address)
    socket.send_fds(channel, [json.dumps(given).encode()], [0, 1, 2, writer])
os.close(writer)
with os.fdopen(reader) as report:
    pid = int(report.readline())
    for sent in FORWARDED:
        signal.signal(sent, lambda number, frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = int(report.readline())
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
