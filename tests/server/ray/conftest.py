"""Ray's own code warns when it is imported, which no test here is about."""

import contextlib
import warnings

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve  # noqa: F401
