"""Recognises the calls and arithmetic that people write before and after a vision network."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fovea_start.triton.code import Known, StepCode

_LONGEST, _CHANNELS, _NEAR = 70, 3, 0.01
_BLACK: Known | None = 0.0

# Full name of a call ("?" is any object), the kind of step that it is, and what it says: "=" sets
# a value, ":" names the place of an argument and its keywords, and "/" a default.
_CALLS: tuple[tuple[str, str, str], ...] = (
    (r"cv2\.im(decode|read)", "decode", "order=BGR code:1,flags"),
    (r"PIL\.Image\.open|.*\.decode_(image|jpeg)", "decode", "order=RGB"),
    (r"nvidia\.dali\..*(decoders\.image|image_decoder)\w*", "decode", "order:-1,output_type/RGB"),
    (r"cv2\.cvtColor", "channels", "code:1,code"),
    (r"\?\.convert", "channels", "code:0,mode"),
    (r"cv2\.resize", "resize", "wh:1,dsize by:5,interpolation/INTER_LINEAR"),
    (r"(PIL\..*|\?)\.resize", "resize", "wh:0,size by:1,resample/BICUBIC"),
    (r"torchvision\..*[Rr]esize", "resize", "hw:0,size by:1,interpolation/BILINEAR"),
    (
        r"nvidia\.dali\.fn\.resize",
        "resize",
        "hw:-1,size h:-1,resize_y w:-1,resize_x shorter:-1,resize_shorter mode:-1,mode "
        "by:-1,interp_type/INTERP_LINEAR",
    ),
    (
        r"(?i:(.*\.)?(letter_?box|resize_(and_|with_)?pad|pad_resize)\w*)",
        "letterbox",
        "hw:1,new_shape",
    ),
    (r"ultralytics\..*LetterBox", "letterbox", "hw:0,new_shape"),
    (r"cv2\.copyMakeBorder", "letterbox", "grey:7,value y:1,top x:3,left"),
    (r"PIL\.ImageOps\.(pad|expand)", "letterbox", "grey:-1,color,fill"),
    (r"nvidia\.dali\.fn\.(paste|pad|slice)", "letterbox", "grey:-1,fill_value,fill_values"),
    (r"torchvision\..*(CenterCrop|center_crop)", "crop", "hw:0,size"),
    (r"nvidia\.dali\.fn\.crop", "crop", "hw:-1,crop"),
    (
        r"nvidia\.dali\.fn\.crop_mirror_normalize",
        "normalise",
        "hw:-1,crop mean:-1,mean std:-1,std times:-1,scale",
    ),
    (r"nvidia\.dali\.fn\.normalize", "normalise", "mean:1,mean std:2,stddev times:-1,scale"),
    (r"torchvision\..*Normalize", "normalise", "mean:0,mean std:1,std"),
    (r"torchvision\..*normalize", "normalise", "mean:1,mean std:2,std"),
    (r"torchvision\..*(ToTensor|to_tensor)", "scale", "std=255"),
    (
        r"cv2\.dnn\.blobFromImages?",
        "resize",
        "wh:2,size times:1,scalefactor mean:3,mean flip:4,swapRB",
    ),
    (r"(numpy|torch)\.(divide|div|true_divide)", "scale", "std:1"),
    (r"\?\.div_?", "scale", "std:0"),
    (r"(numpy|torch|\?)\.(transpose|permute|moveaxis)", "layout", ""),
    (
        r"cv2\.dnn\.NMSBoxes",
        "nms",
        "conf:2,score_threshold iou:3,nms_threshold agnostic=true",
    ),
    (r"torchvision\.ops\..*batched_nms", "nms", "iou:3,iou_threshold"),
    (r"torchvision\.ops\..*nms", "nms", "iou:2,iou_threshold"),
    (
        r"(.*\.)?non_max_suppression\w*",
        "nms",
        "conf:1,conf_thres,conf_threshold iou:2,iou_thres,iou_threshold",
    ),
    (r"(.*[._])?nms(_\w+)?", "nms", "iou:-1,iou_threshold"),
    (r".*(xywh2xyxy|scale_(boxes|coords)|dist(ance)?2bbox)\w*", "boxes", ""),
    (r".*\.?(softmax|argmax|argsort|topk|top_k)", "classes", ""),
    (r"cv2\.(rectangle|putText|polylines|imencode)", "drawing", ""),
    (r".*(ImageProcessor|FeatureExtractor)\w*\.from_pretrained", "processor", "file:0"),
    (r".*Tokenizer\w*\.from_pretrained", "text", ""),
    (r".*\.InferenceRequest", "network", "model:-1,model_name"),
    (r"onnxruntime\.InferenceSession", "loads", "file:0,path_or_bytes"),
    (r"torch\.(jit\.)?load|ultralytics\.\w+", "loads", "file:0"),
    (r"\?(\.\w+)*\.run", "network", ""),
    # These change no image, or only its form.
    (
        r".*\.(external_source|Compose|cast|transpose|minMaxLoc|merge|split|fromarray|ToPILImage"
        r"|set\w+|pipeline_def|reshape|copy|peek_image_shape)",
        "",
        "",
    ),
    (
        r"(cv2|PIL|torchvision\.transforms|nvidia\.dali\.fn|skimage|scipy|albumentations)\..*",
        "?",
        "",
    ),
    (r"numpy\.resize", "?", ""),
)
_LABEL_FILE = re.compile(r"(.*/)?[\w.-]*(label|class|name|coco)[\w.-]*\.(txt|names|json)", re.I)
_LABEL_LIST = re.compile(r".*(label|class|names).*", re.I)
_THRESHOLDS = {
    "conf": re.compile(r"(conf|score|prob|obj|det)\w*thr\w*|conf|confidence|threshold", re.I),
    "iou": re.compile(r"(iou|nms|overlap)\w*thr\w*|iou", re.I),
}

_Values = Mapping[str, Known | None]


@dataclass(frozen=True, slots=True)
class Clue:
    """A part of a step that was understood: its kind, code and place, and the constants in it."""

    kind: str
    code: str
    where: str
    values: _Values


def findings(step: StepCode) -> Iterator[Clue]:
    """Yield what a step does that is known here, in the order of execution."""
    for node in step.run:
        for kind, values in _read(step, node):
            text = " ".join(ast.unparse(node).split())
            short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
            yield Clue(kind, short, step.where(node), values)


def named_constants(step: StepCode) -> Iterator[Clue]:
    """Yield constants by whose names boxes are chosen, and lists of classes."""
    for name, node in step.named():
        match step.value(node):
            case float() as number if 0 < number < 1:
                for kind, pattern in _THRESHOLDS.items():
                    if pattern.fullmatch(name):
                        text = f"{name} = {number:g}"
                        yield Clue(kind, text, step.where(node), {kind: number})
            case (str(), str(), *_) as names if _LABEL_LIST.fullmatch(name):
                text = f"{name}: {len(names)} names"
                yield Clue("labels", text, step.where(node), {"names": names})


def flat(value: Known | None) -> tuple[float, ...]:
    """Return the numbers of a constant, whatever its axes."""
    if isinstance(value, tuple):
        return tuple(number for part in value for number in flat(part))
    return (value,) if isinstance(value, float) else ()


def _read(step: StepCode, node: ast.AST) -> Iterator[tuple[str, _Values]]:
    match node:
        case ast.Call(func=func):
            name = step.name(func)
            rule = next((rule for rule in _CALLS if re.fullmatch(rule[0], name)), None)
            if rule is not None and rule[1]:
                yield rule[1], dict(_said(step, node, rule[2]))
        case ast.BinOp(left=left, op=op, right=by) | ast.AugAssign(target=left, op=op, value=by):
            if step.value(node) is None:  # else it is one of two constants
                yield from _computed(step, left, op, step.value(by))
        case ast.Subscript(slice=ast.Tuple(elts=[*_, last])) if _turns(step, last):
            yield "channels", {"flip": True}
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=at))]):
            lows = [step.value(s.lower) if s.lower else 0.0 for s in at if isinstance(s, ast.Slice)]
            if len(lows) > 1 and (canvas := _canvas(step, name)):
                yield "letterbox", {**canvas, "y": lows[0], "x": lows[1]}
        case ast.Constant(value=str() as text) if _LABEL_FILE.fullmatch(text):
            yield "labels", {"file": text}


def _turns(step: StepCode, last: ast.expr) -> bool:
    """Return True for the [..., ::-1] and [..., [2, 1, 0]] of an image."""
    if isinstance(last, ast.Slice):
        return step.value(last.step) == -1
    return step.value(last) == (2.0, 1.0, 0.0)


def _said(step: StepCode, call: ast.Call, rule: str) -> Iterator[tuple[str, Known | None]]:
    for part in rule.split():
        if ":" not in part:
            name, _, text = part.partition("=")
            yield name, float(text) if text.isdecimal() else text
            continue
        name, _, rest = part.partition(":")
        place, *keywords = rest.partition("/")[0].split(",")
        found = step.argument(call, int(place), *keywords)
        yield name, rest.partition("/")[2] or None if found is None else found


def _computed(
    step: StepCode, left: ast.AST, op: ast.operator, by: Known | None
) -> Iterator[tuple[str, _Values]]:
    """Yield the arithmetic that normalises: with 255, with three numbers, or (x - a) / a."""
    inner = step.value(left.right) if isinstance(left, ast.BinOp) else None
    match op, by:
        case ast.Div(), 255.0:
            yield "scale", {"std": by}
        case ast.Mult(), float() if abs(255 * by - 1) < _NEAR:
            yield "scale", {"std": 1 / by}
        case ast.Div() | ast.Sub(), tuple() if len(flat(by)) == _CHANNELS:
            yield "normalise", {"std" if isinstance(op, ast.Div) else "mean": by}
        case ast.Div(), float() if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Sub):
            if len(flat(inner)) == _CHANNELS:
                yield "normalise", {"std": by}
            elif isinstance(inner, float) and abs(inner - by) <= _NEAR * by:
                yield "normalise", {"mean": inner, "std": by}
        case ast.Sub(), 1.0 if isinstance(left, ast.BinOp):
            if isinstance(left.op, ast.Div) and inner == 127.5:
                yield "normalise", {"mean": inner, "std": inner}
            elif isinstance(left.op, ast.Mult) and inner == 2:
                yield "normalise", {"mean": 0.5, "std": 0.5}


def _canvas(step: StepCode, name: str) -> _Values | None:
    """Return the grey and the size of an array that is filled with one value."""
    for known, value in step.named():
        made, grey = value, _BLACK
        if isinstance(value, ast.BinOp):  # ones, multiplied
            made, grey = value.left, step.value(value.right)
        if known == name and isinstance(made, ast.Call):
            called = step.name(made.func)
            if called == "numpy.full":
                grey = step.argument(made, 1, "fill_value")
            if called in ("numpy.full", "numpy.zeros", "numpy.ones"):
                shape = step.argument(made, 0, "shape")
                return {"grey": grey, "hw": shape[:2] if isinstance(shape, tuple) else None}
    return None
