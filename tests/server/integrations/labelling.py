"""Labelling configurations, and requests as Label Studio sends them."""

import httpx

IMAGE = '<Image name="image" value="$photo"/>'


def config(tag, *labels, **attributes):
    """A labelling configuration with one control."""
    told = "".join(f' {name}="{value}"' for name, value in attributes.items())
    inside = "".join(labels)
    return f'<View>{IMAGE}<{tag} name="c" toName="image"{told}>{inside}</{tag}></View>'


def label(value, classes=None):
    told = "" if classes is None else f' predicted_values="{classes}"'
    return f'<Label value="{value}"{told}/>'


PERSON, VEHICLE = label("Person"), label("Vehicle", "bus, car")


def post(server, model, path, **given):
    return httpx.post(f"{server.url}/label-studio/{model}/{path}", json=given, timeout=60)


def predict(server, model, xml, *addresses, project="1.1700000000"):
    """Predictions for tasks, asked as Label Studio asks."""
    tasks = [{"id": 7 + at, "data": {"photo": each}} for at, each in enumerate(addresses)]
    answer = post(
        server,
        model,
        "predict",
        tasks=tasks,
        project=project,
        label_config=xml,
        params={"login": None, "password": None, "context": None},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_version"] == f"{model}/1"
    return answer.json()["results"]
