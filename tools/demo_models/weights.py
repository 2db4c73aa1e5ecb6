"""Weights of a finished network: batch norms folded into convolutions, from and to ONNX."""

from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tools.demo_models.network import Conv, DigitDetector

Network = TypeVar("Network", bound=nn.Module)


def fold(model: Network) -> Network:
    """Write each batch norm into the weights of its convolution."""
    model.eval()
    for module in model.modules():
        if isinstance(module, Conv) and not isinstance(module[1], nn.Identity):
            convolution, norm = cast(nn.Conv2d, module[0]), cast(nn.BatchNorm2d, module[1])
            module[0] = fuse_conv_bn_eval(convolution, norm)
            module[1] = nn.Identity()
    return model


def trained_detector(path: Path) -> DigitDetector:
    """Read the detector of an exported file; it is not trained on."""
    tensors = onnx.load(path).graph.initializer
    arrays = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in tensors}
    model = fold(DigitDetector())
    model.load_state_dict(
        {name: torch.from_numpy(arrays[f"model.{name}"]) for name in model.state_dict()}
    )
    return model.requires_grad_(False)


def halve(model: onnx.ModelProto) -> None:
    """Store weights in float16, which a Cast brings back: half the file, computed in float32."""
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            name = tensor.name
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, f"{name}.half"))
            cast_ = onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=1)
            casts.append(cast_)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
