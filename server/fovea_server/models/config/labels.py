"""Class names of a model's outputs, from the files that its configuration names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fovea_engines.repository.labels import read_labels
from fovea_preprocess.errors import InvalidModel, InvalidOption, NotFound
from fovea_server.models.config.inside import inside


def read_output_labels(message: Any, folder: Path) -> dict[str, tuple[str, ...]]:
    """Read output -> labels by index; outputs without labels are left out.

    Args:
        message: the complete `ModelConfig`.
        folder: of the model.

    Raises:
        InvalidModel: a file is missing, or holds no labels.
    """
    labels = {}
    for output in message.output:
        if output.label_filename:
            try:
                labels[output.name] = read_labels(inside(folder, output.label_filename))
            except (NotFound, InvalidOption) as error:
                raise InvalidModel(f"labels of output '{output.name}': {error}") from error
    return labels
