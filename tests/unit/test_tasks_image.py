"""Image, text and bytes networks made for the purpose: layouts, scaling, and inputs that fail alone."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from models import manifest
from models.errors import NetworkRejected
from tests import graphs
from tests.graphs import FLOAT, INT64, UINT8, node
from workers import tasks
from workers.tasks.base import ItemFault

RED = Image.new("RGB", (6, 4), (255, 0, 51))


def encoded(image, format_="PNG"):
    out = io.BytesIO()
    image.save(out, format_)
    return {"base64": base64.b64encode(out.getvalue()).decode()}


def options(task, **rest):
    text = json.dumps({"name": "a", "version": "1", "task": task, "artifact": "model.onnx", **rest})
    return manifest.parse(text.encode())


def averages(folder, shape, axes, datatype=FLOAT):
    """A network whose scores are the means of the channels."""
    nodes = [node("Cast", ["x"], ["f"], to=FLOAT), node("ReduceMean", ["f", "axes"], ["y"], keepdims=0)]
    return graphs.save(folder, nodes, [("x", datatype, shape)], [("y", FLOAT, ["n", 3])], {"axes": np.array(axes)})


def test_every_task_of_the_contract_has_a_kind():
    assert set(tasks.KINDS) == set(manifest.TASKS)


@pytest.mark.parametrize(("shape", "axes"), [(["n", 3, 4, 6], [2, 3]), (["n", 4, 6, 3], [1, 2]), (["n", 3, None, None], [2, 3])])
def test_channels_may_come_first_or_last(tmp_path, shape, axes):
    extra = {} if None not in shape else {"size": [4, 6]}
    network = graphs.serve(averages(tmp_path, shape, axes), options("image-classification", image=extra))
    found = network.run([encoded(RED), encoded(RED.transpose(Image.Transpose.ROTATE_90), "WEBP")])
    assert list(found[0]["scores"].values()) == pytest.approx([1, 0, 0.2], abs=1e-6)
    assert found[0]["label"] == found[1]["label"] == "0"


def test_scaling_order_and_raw_pixels_follow_the_manifest(tmp_path):
    path = averages(tmp_path, ["n", 3, 4, 6], [2, 3])
    image = {"mode": "BGR", "scale": 1, "mean": [1, 2, 3], "std": [2]}
    found = graphs.serve(path, options("image-classification", image=image)).run([encoded(RED)])
    assert list(found[0]["scores"].values()) == pytest.approx([25, -1, 126])
    raw = graphs.serve(averages(tmp_path, ["n", 3, 4, 6], [2, 3], UINT8), options("image-classification"))
    assert list(raw.run([encoded(RED)])[0]["scores"].values()) == [255, 0, 51]


@pytest.mark.parametrize(("shape", "image", "reason"), [
    (["n", 3, None, None], {}, "give `image:"), (["n", 3, 4, 6], {"size": [8, 8]}, "is not the network's"),
    (["n", 5, 4, 6], {}, "1 or 3 channels"), (["n", 3, 4, 6], {"mode": "L"}, "does not fit 3 channels"),
    (["n", 3, 4, 6], {"mean": [1, 2]}, "or 3: one a channel"),
])
def test_a_network_that_does_not_fit_images_is_rejected(tmp_path, shape, image, reason):
    with pytest.raises(NetworkRejected, match=reason):
        graphs.serve(averages(tmp_path, shape, [2, 3]), options("image-classification", image=image))


def test_a_broken_image_fails_alone(tmp_path):
    network = graphs.serve(averages(tmp_path, ["n", 3, 4, 6], [2, 3]), options("image-classification"))
    good = json.dumps(encoded(RED)).encode()
    whole = base64.b64decode(encoded(Image.effect_noise((64, 64), 90).convert("RGB"))["base64"])
    gif = encoded(RED, "GIF")
    bodies = [good, json.dumps({"base64": base64.b64encode(whole[:len(whole) // 2]).decode()}).encode(),
              json.dumps(gif).encode(), b'{"base64":"YWJj"}', b'{"base64":"!"}', b"5", b"[" * 100_000,
              json.dumps(encoded(Image.new("1", (9000, 9000)))).encode(), good]
    items = network.task.decode(bodies)
    assert [isinstance(item, ItemFault) for item in items] == [False, *[True] * 7, False]
    assert {item.code for item in items[1:-1]} == {"input_invalid"}


def tokenizer(folder, words):
    out = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0]))
    out.pre_tokenizer = pre_tokenizers.Whitespace()
    out.save(str(folder / "tokenizer.json"))


def counting(folder, *extra):
    """A text network whose two scores are the sums of ids and of the mask."""
    nodes = [node("Cast", ["input_ids"], ["i"], to=FLOAT), node("Cast", ["attention_mask"], ["m"], to=FLOAT),
             node("Mul", ["i", "m"], ["im"]), node("ReduceSum", ["im", "axis"], ["si"], keepdims=1),
             node("ReduceSum", ["m", "axis"], ["sm"], keepdims=1), node("Concat", ["si", "sm"], ["y"], axis=1)]
    takes = [("input_ids", INT64, ["n", "s"]), ("attention_mask", INT64, ["n", "s"]), *extra]
    return graphs.save(folder, nodes, takes, [("y", FLOAT, ["n", 2])], {"axis": np.array([1])})


def test_texts_of_different_lengths_are_padded_and_masked(tmp_path):
    tokenizer(tmp_path, ["?", "a", "b", "c"])
    network = graphs.serve(counting(tmp_path), options("text-classification", labels=["ids", "length"], max_tokens=4))
    found = network.run(["c c", "a", "", "b b b b b b", "?"])
    assert [list(out["scores"].values()) for out in found] == [[6, 2], [1, 1], [0, 0], [8, 4], [0, 1]]
    assert [item.work for item in network.task.decode([b'"c c"', b'""'])] == [2, 1]
    assert graphs.serve(counting(tmp_path), options("text-embedding")).run(["c c"]) == [{"embedding": [6, 2]}]


def test_a_text_network_says_what_it_lacks(tmp_path):
    with pytest.raises(NetworkRejected, match=r"tokenizer tokenizer\.json can't be read"):
        graphs.serve(counting(tmp_path), options("text-embedding"))
    tokenizer(tmp_path, ["?", "a"])
    with pytest.raises(NetworkRejected, match="must take input_ids"):
        graphs.serve(counting(tmp_path, ("pixels", FLOAT, ["n", 3])), options("text-embedding"))
    path = graphs.save(tmp_path, [node("Cast", ["input_ids"], ["f"], to=FLOAT), node("Unsqueeze", ["f", "axis"], ["y"])],
                       [("input_ids", INT64, ["n", "s"])], [("y", FLOAT, ["n", "s", 1])], {"axis": np.array([2])})
    with pytest.raises(NetworkRejected, match="needs pooling"):
        graphs.serve(path, options("text-embedding"))


def test_bytes_are_read_from_both_ends(tmp_path):
    nodes = [node("Cast", ["x"], ["y"], to=FLOAT)]
    path = graphs.save(tmp_path, nodes, [("x", graphs.INT32, ["n", 5])], [("y", FLOAT, ["n", 5])])
    network = graphs.serve(path, options("bytes-classification", bytes={"head": 3, "tail": 2, "block": 4, "padding": 256}))
    contents = [b"  abcdefg\n", b"xy", b"a\n\n\n\n"]
    found = network.run([{"base64": base64.b64encode(content).decode()} for content in contents])
    assert [list(out["scores"].values()) for out in found] == [
        [97, 98, 256, 102, 103], [120, 121, 256, 120, 121], [97, 10, 10, 256, 256]]
    with pytest.raises(NetworkRejected, match=r"\[n, 2048\]"):
        graphs.serve(path, options("bytes-classification"))
