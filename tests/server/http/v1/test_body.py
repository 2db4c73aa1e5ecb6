"""Bodies and options: understood, or refused with a sentence that names the fault."""

import base64
from dataclasses import fields

import orjson
import pytest

import fovea_client
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidImage, InvalidOption, InvalidRequest
from fovea_server.http.v1.body import Url, parse_body, parse_options

JSON = "application/json"
FORM = "multipart/form-data; boundary=b"


def form(*parts: tuple[str, bytes]) -> bytes:
    body = b""
    for disposition, content in parts:
        body += b"--b\r\nContent-Disposition: form-data; " + disposition.encode()
        body += b"\r\n\r\n" + content + b"\r\n"
    return body + b"--b--\r\n"


def test_a_raw_body_is_one_image():
    assert parse_body(b"anything", "image/jpeg", {}, 8) == ([b"anything"], PredictOptions())
    assert parse_body(b"anything", "", {"conf": "0.5"}, 8)[1].conf == 0.5


def test_the_client_has_every_option():
    own = {"version", "timeout_ms", "channels"}
    options = {each.name for each in fields(PredictOptions)}
    assert fovea_client.PredictOptions.__annotations__.keys() == options | own


def test_json_images_and_options():
    body = orjson.dumps(
        {
            "images": [
                {"data": base64.b64encode(b"one").decode()},
                {"url": "http://example.com/a.jpg"},
                {"data": "***"},
            ],
            "conf": 0.1,
            "classes": [1, 2],
            "agnostic": True,
        }
    )
    nulls = orjson.dumps({"images": [{"data": None, "url": "u"}, {"data": "", "url": None}]})
    assert parse_body(nulls, JSON, {}, 8) == ([Url("u"), b""], PredictOptions())
    sources, options = parse_body(body, JSON + "; charset=utf-8", {"conf": "0.9", "iou": "0.5"}, 8)
    assert sources[0] == b"one"
    assert sources[1] == Url("http://example.com/a.jpg")
    assert isinstance(sources[2], InvalidImage)
    assert options == PredictOptions(conf=0.1, iou=0.5, classes=(1, 2), agnostic=True)


def test_form_images_and_options():
    large = bytes(range(256)) * 8000
    body = form(
        ('name="a"; filename="a.jpg"', b"one"),
        ('name="classes"', b"3"),
        ('name="classes"', b"5"),
        ('name="b"; filename="b.jpg"', large),
    )
    sources, options = parse_body(body, FORM, {}, 8)
    assert sources == [b"one", large]
    assert parse_body(bytearray(body), FORM, {}, 8) == (sources, options)
    assert options.classes == (3, 5)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"{", JSON, "not JSON"),
        (b"[]", JSON, "the body"),
        (b'{"images":[]}', JSON, "images is empty"),
        (b'{"image":"a"}', JSON, r"must be .*, but has 'image': write each image as"),
        (b'{"images":[{}]}', JSON, "write each image as"),
        (b'{"images":[{"data":"", "url":""}]}', JSON, "write each image as"),
        (b'{"images":[{"data":1}]}', JSON, r"images\[0\] has an unknown form: write each image as"),
        (b'{"images":[{"data":""},"a"]}', JSON, r"images\[1\] has an unknown form"),
        (b'{"images":[{"data":"","path":[]}]}', JSON, r"images\[0\] has an unknown form"),
        (
            b"\xff\xd8\xff\xe0",
            JSON,
            "the body is an image",
        ),
        (b"\xfe\xff", JSON, "not JSON"),
        (b"[" * 5000 + b"]" * 5000, JSON, "the body"),
        (b'{"images":[' + b'{"data":""},' * 8 + b'{"data":""}]}', JSON, "9 images"),
        (b"--b\r\nnonsense", FORM, "form"),
        (form(("name=x", b"1")), FORM, "no file"),
        (form(('name="a"; filename="a"', b"1"))[:-8], FORM, "form"),
        (b"", "multipart/form-data", "boundary"),
        (b"", "multipart/form-data; boundary=" + "b" * 5000, "form"),
        (form(*[('name="a"; filename="a"', b"1")] * 2)[:-8], FORM, "is incomplete"),
        (form(*[('name="classes"', b"1")] * 100), FORM, "more than 64 fields"),
        (form(*[('name="a"; filename="a"', b"1")] * 9), FORM, "more than 8 images"),
    ],
)
def test_what_cannot_be_understood_is_refused(body, kind, message):
    with pytest.raises(InvalidRequest, match=message):
        parse_body(body, kind, {}, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"conf": "1.5"}, "from 0 to 1"),
        ({"conf": "-0.1"}, "from 0 to 1"),
        ({"conf": "nan"}, "from 0 to 1"),
        ({"conf": "high"}, "a number from 0 to 1"),
        ({"iou": "2"}, "from 0 to 1"),
        ({"max_det": "0"}, "from 1 to 3000"),
        ({"max_det": "1e3"}, "whole number"),
        ({"classes": "a,,b"}, "class names or ids"),
        ({"classes": "-1"}, "id outside of 0"),
        ({"classes": "1," * 1000 + "1"}, "maximum is 1000"),
        ({"agnostic": "perhaps"}, "true or false"),
        ({"speed": "9"}, "not an option; options: conf, iou"),
    ],
)
def test_options_out_of_range_name_the_range(given, message):
    with pytest.raises(InvalidOption, match=message):
        parse_options(given)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"conf": 7}, "^conf is 7.0; it must be from 0 to 1$"),
        ({"conf": [7]}, "^conf is '\\[7\\]'; it must be a number from 0 to 1$"),
        ({"conf": None}, "it must be a number"),
        ({"max_det": 1.5}, "it must be a whole number"),
        ({"agnostic": 2}, "it must be true or false"),
        ({"classes": 5}, "it must be class names or ids, in a list"),
        ({"classes": [1.5]}, "it must be class names or ids, in a list"),
        ({"classes": {"a": 1}}, "it must be class names or ids, in a list"),
        ({"cnf": 1}, "^'cnf' is not an option; did you mean 'conf'\\? options: conf, iou"),
        ({"normalise": "bogus"}, "^normalise is 'bogus'"),
        ({"normalise": "false", "normalize": "true"}, "^normalize is given twice"),
        ({"confidence": 1}, "^'confidence' is not an option; did you mean 'conf'"),
        ({"x" * 5000: "y"}, "^'x{60}' is not an option"),
        ({"iou": "y" * 5000}, "^iou is 'y{60}'; it must be"),
    ],
)
def test_options_in_json_are_refused_in_the_words_of_those_in_the_address(option, message):
    with pytest.raises(InvalidOption, match=message):
        parse_body(orjson.dumps({"images": [{"data": ""}], **option}), JSON, {}, 8)


def test_json_values_that_mean_the_same():
    body = b'{"images":[{"data":""}],"max_det":7.0,"agnostic":1,"classes":"0,a"}'
    options = parse_body(body, JSON, {}, 8)[1]
    assert options == PredictOptions(max_det=7, agnostic=True, classes=(0, "a"))


def test_options_as_text():
    options = parse_options({"classes": "0, 5", "agnostic": "TRUE", "max_det": "7"})
    assert options == PredictOptions(classes=(0, 5), agnostic=True, max_det=7)


@pytest.mark.parametrize("gap", ["\n", "\r\n", "\n    "])
def test_base64_with_line_breaks_is_an_image(gap):
    """The command `base64` and MIME break lines; in Roboflow's form they were read already."""
    image = bytes(range(256)) * 9
    text = base64.b64encode(image).decode()
    broken = gap.join(text[at : at + 76] for at in range(0, len(text), 76)) + gap
    for data in (broken, f"data:image/jpeg;base64,{broken}"):
        body = orjson.dumps({"images": [{"data": data}]})
        assert parse_body(body, JSON, {}, 8)[0] == [image]


def test_a_data_url_as_browsers_make_it_is_an_image():
    text = "data:image/jpeg;base64," + base64.b64encode(b"image").decode()
    sources, _ = parse_body(orjson.dumps({"images": [{"data": text}]}), JSON, {}, 8)
    assert sources == [b"image"]
