"""`fovea index`: computes the embeddings of many images, for similarity search."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from fovea_engines.repository.repository import DEFAULT_REPOSITORY
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, NotFound
from fovea_preprocess.text import counted
from fovea_server.cli.options import (
    AllowCodeOption,
    AsJson,
    EveryOption,
    RepositoryOption,
    ServedModelArgument,
    SourcesArgument,
    VersionOption,
    find_models,
)
from fovea_server.cli.predict_output import complain
from fovea_server.cli.predict_progress import PredictProgress
from fovea_server.models.model_folder import version_folder
from fovea_server.offline.answers import answers, count_images
from fovea_server.offline.entry import Entry, InputImage, Result
from fovea_server.offline.predictors import LocalPredictor
from fovea_server.offline.save import Counts
from fovea_server.offline.sources import find_sources
from fovea_server.search.index import (
    DEFAULT,
    ModelIdentity,
    Thumbnails,
    VectorIndex,
    check_name,
    thumbnail,
)


def index(
    context: typer.Context,
    model: ServedModelArgument,
    sources: SourcesArgument,
    repository: RepositoryOption = DEFAULT_REPOSITORY,
    version: VersionOption = None,
    allow_code: AllowCodeOption = False,
    name: Annotated[
        str, typer.Option(help="Name of the index: the file is NAME.npz in the model's folder.")
    ] = DEFAULT,
    every: EveryOption = 1,
    thumbnails: Annotated[
        bool,
        typer.Option(
            "--thumbnails",
            help=(
                "Store a small copy of each image in the index. The web page shows it with search "
                "results."
            ),
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Index images for similarity search.

    The task of the model must be embed. The index is the file NAME.npz in the model's folder of the
    repository. A server reads this file at the first search, and again after each change. If an
    image file is missing, the command writes no index.

    Example: fovea index reid people/ --thumbnails

    Example: curl --data-binary @who.jpg 'http://127.0.0.1:8000/v1/models/reid/search?k=5'
    """
    check_name(name)
    found = find_sources(sources, every=every, drawn=None)
    # A new index without this image could replace an index that contains it, so no index is
    # written.
    if missing := [source.file for source in found.files if not source.path.exists()]:
        raise NotFound(f"{missing[0]} does not exist, so no index was written")
    [path] = find_models(context, repository, model)
    vectors, names, counts = list[NDArray[np.float32]](), list[str](), Counts()
    pictures = list[bytes]()
    count = count_images(found.files)
    how = {"alone": count == 1, "allow_code": allow_code}
    with LocalPredictor(version_folder(path, version), PredictOptions(), **how) as predictor:
        if (task := predictor.describe().task) != "embed":
            raise InvalidOption(
                f"model '{path.name}' has the task {task}, but an index needs a model with the "
                "task embed"
            )
        identity = ModelIdentity.of(predictor.card)
        outcomes = answers(predictor, found.files, draw=_thumbnail if thumbnails else None)
        with PredictProgress(count) as progress, closing(outcomes):
            for answer in outcomes:
                counts.add(answer.entry)
                progress.add(counts, answer.entry)
                result = answer.entry.checked
                vector = None if result is None else result.found
                if isinstance(vector, Embedding):
                    vectors.append(vector.unit)
                    names.append(answer.entry.name)
                    if isinstance(answer.drawn, bytes):
                        pictures.append(answer.drawn)
    if not vectors:
        raise NotFound("no image has an embedding, so no index was written")
    shown = Thumbnails.of(pictures) if thumbnails else None
    made = VectorIndex.of(np.stack(vectors), names, identity, shown)
    file = path / f"{name}.npz"
    made.write(file)
    if as_json:
        size = made.vectors.shape[1]
        document = {"index": str(file), "images": len(names), "size": size, "failed": counts.failed}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"{file}: {made.text}")
    if counts.failed:
        complain(f"error: {counts.failed} of {counted(counts.images, 'image')} failed")
        raise typer.Exit(1)


def _thumbnail(entry: Entry, image: InputImage) -> bytes | None:
    return thumbnail(image.upright.pixels) if isinstance(entry.result, Result) else None
