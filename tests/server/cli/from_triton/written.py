"""Repositories of Triton that tests write: the files of each model."""

from onnx import TensorProto, helper

Files = dict[str, str | bytes | None]
NETWORK: Files = {"1/model.onnx": None}
PYTHON = 'backend: "python"\n'
ENSEMBLE = 'platform: "ensemble"\n'
BYTES = '[{ name: "RAW" data_type: TYPE_UINT8 dims: [ -1 ] }]'
ROW = "data_type: TYPE_FP32 dims: [ 1, 3 ]"


def step(model: str, takes: str, gives: str) -> str:
    return (
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{takes}" }} '
        f'output_map {{ key: "y" value: "{gives}" }} }}'
    )


def ensemble(*models: str, takes: str = BYTES, more: str = "") -> str:
    """A configuration whose steps run in this order, and are not written in it."""
    tensors = ["RAW", *(f"t{number}" for number in range(len(models)))]
    parts = [step(*each) for each in zip(models, tensors, tensors[1:], strict=False)]
    steps = f"ensemble_scheduling {{ step [ {', '.join(reversed(parts))} ] }}\n"
    return f"{ENSEMBLE}input {takes}\n{more}{steps}"


def ensemble_of_rows(*models: str) -> str:
    """One whose networks take and give rows of three numbers."""
    gives = f'output [{{ name: "t{len(models) - 1}" {ROW} }}]\n'
    return ensemble(*models, takes=f'[{{ name: "RAW" {ROW} }}]', more=gives)


def python(source: str = "", config: str = PYTHON, **more: str | bytes | None) -> Files:
    return {"1/model.py": source, "config.pbtxt": config, **more}


def relu() -> Files:
    """A network of rows of three numbers."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "rows", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return {"1/model.onnx": model.SerializeToString()}
