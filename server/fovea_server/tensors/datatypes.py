"""Element types: the protocol's name, and numpy's.

Source: "Tensor Data Types" of the Open Inference Protocol and `DataType` of model_config.proto.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{
        f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}")
        for kind in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    # Elements are `bytes`.
    "BYTES": np.dtype(object),
}
"""The protocol's name -> numpy's type."""

NAMES = {dtype: name for name, dtype in NUMPY.items()}
"""numpy's type -> the protocol's name."""


def protocol_name(config_name: str) -> str:
    """Convert from the name in config.pbtxt: "TYPE_FP32", "TYPE_STRING"."""
    return "BYTES" if config_name == "TYPE_STRING" else config_name.removeprefix("TYPE_")
