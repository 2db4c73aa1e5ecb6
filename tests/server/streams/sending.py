"""A program that sends the events of a folder until it is killed: sending.py FOLDER KEY ADDRESS."""

import asyncio
import sys
from pathlib import Path

from fovea_server.streams.events import sender
from fovea_server.streams.events.config import EventConfig
from fovea_server.streams.events.feed import EventFeed

sender._FIRST_WAIT_S = sender._LONGEST_WAIT_S = 0.02


async def main(folder, key, address):
    given = {"lines": "door=0.5,0,0.5,1", "zones": "yard=0,0,1,0,1,1", key: address}
    feed = EventFeed("gate", EventConfig.parse(given), Path(folder))
    feed.start()
    feed.become(live=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
