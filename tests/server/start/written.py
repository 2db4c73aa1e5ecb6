"""Repositories of Triton that tests write: the files of each model."""

Files = dict[str, str | bytes | None]
NETWORK: Files = {"1/model.onnx": None}
PYTHON = 'backend: "python"\n'
ENSEMBLE = 'platform: "ensemble"\ninput [{ name: "RAW" data_type: TYPE_UINT8 dims: [ -1 ] }]\n'


def step(model: str, takes: str, gives: str) -> str:
    return (
        f'{{ model_name: "{model}" input_map {{ key: "x" value: "{takes}" }} '
        f'output_map {{ key: "y" value: "{gives}" }} }}'
    )


def ensemble(*models: str) -> str:
    """A configuration whose steps run in this order, and are not written in it."""
    tensors = ["RAW", *(f"t{number}" for number in range(len(models)))]
    parts = [step(*each) for each in zip(models, tensors, tensors[1:], strict=False)]
    return f"{ENSEMBLE}ensemble_scheduling {{ step [ {', '.join(reversed(parts))} ] }}\n"


def python(source: str, config: str = PYTHON, **more: str | bytes) -> Files:
    return {"1/model.py": source, "config.pbtxt": config, **more}
