"""Candidates of builds are timed for a moment: a call in each of the fewest rounds.

Else each takes some seconds of every core, and no test depends on which of them is kept.
"""

from fovea_engines.evaluation import speed
from fovea_engines.quantization import search


def time_briefly() -> None:
    """Let this process time candidates so."""
    speed._SECONDS = speed._LONGEST_S = 0.0


def search_coarsely() -> None:
    """Let this process search a few blocks for those that lose in INT8, and not some twenty."""
    search._FEWEST, search._MAX = 2, 4
