"""Steps of Triton as people write them: in our own words, in the shapes of public repositories."""

LETTERBOX = """
import json

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


def letterbox(img, new_shape=(320, 320), color=(114, 114, 114)):
    h, w = img.shape[:2]
    ratio = min(new_shape[0] / h, new_shape[1] / w)
    inner = int(round(w * ratio)), int(round(h * ratio))
    dw, dh = (new_shape[1] - inner[0]) / 2, (new_shape[0] - inner[1]) / 2
    img = cv2.resize(img, inner, interpolation=cv2.INTER_LINEAR)
    top, bottom = int(round(dh - 0.1)), int(round(dh + 0.1))
    left, right = int(round(dw - 0.1)), int(round(dw + 0.1))
    return cv2.copyMakeBorder(img, top, bottom, left, right, cv2.BORDER_CONSTANT, value=color)


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            img = cv2.imdecode(np.frombuffer(data.tobytes(), np.uint8), cv2.IMREAD_COLOR)
            img = cv2.cvtColor(letterbox(img), cv2.COLOR_BGR2RGB)
            img = img.transpose(2, 0, 1).astype(np.float32) / 255.0
            tensor = pb_utils.Tensor("images", img[None])
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
"""

SUPPRESS = """
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.score_threshold = 0.4
        self.nms_threshold = 0.6

    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "OUTPUT").as_numpy()[0].T
            scores, ids = rows[:, 4:].max(axis=1), rows[:, 4:].argmax(axis=1)
            boxes = rows[:, :4].copy()
            boxes[:, :2] -= boxes[:, 2:] / 2
            kept = cv2.dnn.NMSBoxes(boxes, scores, self.score_threshold, self.nms_threshold)
            found = np.concatenate([boxes[kept], scores[kept, None], ids[kept, None]], axis=1)
            tensor = pb_utils.Tensor("FOUND", found.astype(np.float32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
"""

# A normalisation that is made and not applied, as some copy it.
PILLOW = """
import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image
from torchvision import transforms as T


class TritonPythonModel:
    def execute(self, requests):
        normalize = T.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
        loader = T.Compose([T.Resize([320, 320]), T.ToTensor()])
        image = Image.open(io.BytesIO(requests[0])).convert("RGB")
        return loader(image).unsqueeze(0)
"""

CROP = """
import triton_python_backend_utils as pb_utils
from PIL import Image
import torchvision.transforms as transforms

MEAN = [0.485, 0.456, 0.406]


class TritonPythonModel:
    def initialize(self, args):
        self.transform = transforms.Compose([
            transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
            transforms.Normalize(mean=MEAN, std=[0.229, 0.224, 0.225]),
        ])

    def execute(self, requests):
        return [self.transform(Image.open(each)) for each in requests]
"""

DALI = """
import nvidia.dali as dali
import nvidia.dali.types as types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@dali.pipeline_def(batch_size=8, num_threads=4, device_id=0)
def pipe():
    images = dali.fn.external_source(device="cpu", name="RAW")
    images = dali.fn.decoders.image(images, device="mixed", output_type=types.RGB)
    images = dali.fn.resize(images, resize_shorter=256)
    return dali.fn.crop_mirror_normalize(
        images, dtype=types.FLOAT, output_layout="CHW", crop=(224, 224),
        mean=[0.485 * 255, 0.456 * 255, 0.406 * 255], std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
    )
"""

# The network is asked for by the step itself; the sizes come as arguments.
ASKING = """
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils
from helpers import NAMES, suppress


class TritonPythonModel:
    def prepare(self, img, input_w, input_h):
        scale = min(input_w / img.shape[1], input_h / img.shape[0])
        padded = np.ones((input_h, input_w, 3), dtype=np.uint8) * 114
        size = int(img.shape[1] * scale), int(img.shape[0] * scale)
        small = cv2.resize(img, size, interpolation=cv2.INTER_LINEAR)
        padded[: size[1], : size[0]] = small
        return padded.transpose(2, 0, 1).astype(np.float32)

    def execute(self, requests):
        img = cv2.imdecode(requests[0], cv2.IMREAD_COLOR)
        tensor = pb_utils.Tensor("images", self.prepare(img, 320, 320)[None])
        asked = pb_utils.InferenceRequest(
            model_name="digits", requested_output_names=["output0"], inputs=[tensor])
        return suppress(asked.exec(), conf_thres=0.35), NAMES
"""
HELPERS = """
NAMES = {0: "zero", 1: "one", 2: "two", 3: "three", 4: "four",
         5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


def suppress(found, conf_thres=0.25, iou_thres=0.45):
    return [each for each in found if each > conf_thres]
"""

# Levels of -1 to 1, thresholds from config.pbtxt, names in JSON.
SIGNED = """
import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        img = cv2.resize(cv2.imread(requests[0]), (320, 320), interpolation=cv2.INTER_AREA)
        return (np.float32(img[..., ::-1]) - 127.5) / 127.5
"""
CONFIGURED = """
import json

import triton_python_backend_utils as pb_utils
from torchvision.ops import batched_nms


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.threshold = float(parameters["THRESHOLD"]["string_value"])
        self.iou = float(parameters["IOU"]["string_value"])
        with open("/models/post/labels.json") as file:
            self.labels = json.load(file)

    def execute(self, requests):
        boxes, scores, ids = requests
        return batched_nms(boxes, scores, ids, self.iou)
"""

# The network runs in the step, by ONNX Runtime.
OWN_SESSION = """
import cv2
import onnxruntime as ort


class TritonPythonModel:
    def initialize(self, args):
        self.session = ort.InferenceSession("/models/all_in_one/1/digits.onnx")

    def execute(self, requests):
        image = cv2.imdecode(requests[0], 1)
        blob = cv2.dnn.blobFromImage(image, 1 / 255.0, (320, 320), swapRB=True)
        return self.session.run(None, {"images": blob})
"""

SMOOTH = """
import cv2
import triton_python_backend_utils as pb_utils
from transformers import AutoImageProcessor


class TritonPythonModel:
    def initialize(self, args):
        self.processor = AutoImageProcessor.from_pretrained("acme/vit")

    def execute(self, requests):
        return self.processor(cv2.GaussianBlur(requests[0], (5, 5), 0))
"""
NOTHING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(output_tensors=[]) for _ in requests]
"""
