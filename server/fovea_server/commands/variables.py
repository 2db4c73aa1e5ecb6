"""Warns of environment variables that look like settings and are not read."""

from __future__ import annotations

import logging
from difflib import get_close_matches

from fovea_server.commands.flags import OTHER_NAMES
from fovea_server.settings import Settings, linked_variables, unknown_variables

log = logging.getLogger(__name__)


def warn_of_ignored_variables() -> None:
    """Log each, with advice.

    These are no errors: a platform may add variables of its own beside the operator's.
    """
    # Flags have second names; their settings do not, but people will try.
    meant = {
        other.removeprefix("--").replace("-", "_"): name
        for name, others in OTHER_NAMES.items()
        for other in others
    }
    meant |= {name: name for name in Settings.model_fields}
    for variable in unknown_variables():
        close = get_close_matches(variable.lower().removeprefix("fovea_"), meant, 1)
        advice = f"did you mean FOVEA_{meant[close[0]].upper()}? " if close else ""
        log.warning(
            "%s is set but names no setting: %s`fovea serve --help` lists the settings",
            variable,
            advice,
        )
    for variable in linked_variables():
        service = variable.lower().removesuffix("_port").replace("_", "-")
        log.warning(
            "%s is ignored: Kubernetes set it to the address of the Service %s; "
            "set enableServiceLinks: false in the pod's spec",
            variable,
            service,
        )
