"""`tabular`: skl2onnx's exports of every kind, single tensors, columns of their own, values and labels."""

import numpy as np
import pytest
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from sklearn.linear_model import LinearRegression, LogisticRegression

from models.errors import NetworkRejected
from tests import graphs
from tests.graphs import FLOAT, INT64, STRING, node
from workers.tasks.base import ItemFault

TABULAR = {"task": "tabular", "allow_null": False, "labels": None, "columns": None, "output": None}
RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(200, 3)).astype(np.float32)
CLASSES = (ROWS[:, 0] > 0).astype(int) + (ROWS[:, 1] > 0)


def exported(folder, fitted, inputs, **options):
    path = folder / "model.onnx"
    network = convert_sklearn(fitted, "test", inputs, target_opset=18, **options)
    path.write_bytes(network.SerializeToString())
    return path


def classifier(folder, classes):
    fitted = LogisticRegression().fit(ROWS, classes)
    inputs = [("X", FloatTensorType([None, 3]))]
    return fitted, exported(folder, fitted, inputs, options={id(fitted): {"zipmap": False}})


def test_a_classifier_gives_labels_and_probabilities(tmp_path):
    fitted, path = classifier(tmp_path, CLASSES)
    network = graphs.serve(path, TABULAR | {"labels": ["none", "one", "both"], "columns": ["a", "b", "c"]})
    found = network.run([row.tolist() for row in ROWS])
    names = ["none", "one", "both"]
    assert [out["label"] for out in found] == [names[at] for at in fitted.predict(ROWS)]
    np.testing.assert_allclose([[out["probabilities"][name] for name in names] for out in found],
                               fitted.predict_proba(ROWS), atol=1e-5)
    named = dict(zip("abc", ROWS[0].tolist(), strict=True))
    assert network.run([named]) == network.run([ROWS[0].tolist()])


def test_without_labels_a_class_is_its_index(tmp_path):
    _, path = classifier(tmp_path, CLASSES)
    network = graphs.serve(path, TABULAR)
    assert network.signature["labels"] == ["0", "1", "2"]
    assert network.signature["columns"] == ["f0", "f1", "f2"]


def test_labels_that_are_names_are_kept(tmp_path):
    fitted, path = classifier(tmp_path, np.array(["lo", "mid", "hi"])[CLASSES])
    network = graphs.serve(path, TABULAR | {"labels": fitted.classes_.tolist()})
    assert [out["label"] for out in network.run([row.tolist() for row in ROWS])] == fitted.predict(ROWS).tolist()


def test_class_numbers_that_do_not_start_at_zero_are_rejected(tmp_path):
    _, path = classifier(tmp_path, CLASSES + 1)
    with pytest.raises(NetworkRejected, match="number the classes from 0"):
        graphs.serve(path, TABULAR)


def test_a_wrong_number_of_labels_or_columns_is_rejected(tmp_path):
    _, path = classifier(tmp_path, CLASSES)
    with pytest.raises(NetworkRejected, match="3 classes, but 2 labels"):
        graphs.serve(path, TABULAR | {"labels": ["a", "b"]})
    with pytest.raises(NetworkRejected, match="names 2, but the network takes 3"):
        graphs.serve(path, TABULAR | {"columns": ["a", "b"]})


def test_a_label_file_is_read_from_the_folder(tmp_path):
    _, path = classifier(tmp_path, CLASSES)
    (tmp_path / "labels.txt").write_text("a\nb\n\nc\n")
    assert graphs.serve(path, TABULAR | {"labels": "labels.txt"}).signature["labels"] == ["a", "b", "c"]
    with pytest.raises(NetworkRejected, match="can't be read"):
        graphs.serve(path, TABULAR | {"labels": "none.txt"})


def test_a_regression_gives_a_value(tmp_path):
    fitted = LinearRegression().fit(ROWS, ROWS @ [1, 2, 3])
    path = exported(tmp_path, fitted, [("X", FloatTensorType([None, 3]))])
    network = graphs.serve(path, TABULAR)
    found = network.run([row.tolist() for row in ROWS])
    np.testing.assert_allclose([out["value"] for out in found], fitted.predict(ROWS), atol=1e-5)
    with pytest.raises(NetworkRejected, match="its output is a value"):
        graphs.serve(path, TABULAR | {"labels": ["a", "b"]})


def test_columns_of_several_datatypes_are_tensors_of_their_own(tmp_path):
    path = graphs.save(
        tmp_path,
        [node("Cast", ["visits"], ["v"], to=FLOAT),
         node("LabelEncoder", ["town"], ["t"], domain="ai.onnx.ml", keys_strings=["here", "there"],
              values_floats=[1.0, 9.0]),
         node("Concat", ["age", "v", "t"], ["scores"], axis=1)],
        [("age", FLOAT, [None, 1]), ("visits", INT64, [None, 1]), ("town", STRING, [None, 1])],
        [("scores", FLOAT, [None, 3])])
    network = graphs.serve(path, TABULAR | {"labels": ["by age", "by visits", "by town"]})
    assert network.signature["columns"] == ["age", "visits", "town"]
    rows = [{"age": 50.5, "visits": 2, "town": "here"}, {"town": "there", "age": 5, "visits": 8}, [1, 2, "here"]]
    found = network.run(rows)
    assert [out["label"] for out in found] == ["by age", "by town", "by visits"]
    assert found[0]["probabilities"] == {"by age": 50.5, "by visits": 2, "by town": 1}


def test_a_row_whose_scores_are_not_finite_fails_alone(tmp_path):
    path = graphs.save(tmp_path, [node("Log", ["x"], ["y"])], [("x", FLOAT, [None, 2])], [("y", FLOAT, [None, 2])])
    found = graphs.serve(path, TABULAR).run([[1, 2], [0, 1], [2, 1]])
    assert isinstance(found[1], ItemFault)
    assert [found[0]["label"], found[2]["label"]] == ["1", "0"]


def test_a_network_of_another_kind_says_what_would_fit(tmp_path):
    path = graphs.save(tmp_path, [node("Identity", ["x"], ["y"])], [("x", FLOAT, [None, 2, 2])],
                       [("y", FLOAT, [None, 2, 2])])
    with pytest.raises(NetworkRejected, match=r"x FP32\[n, 2, 2\].*one \[n, f\] tensor"):
        graphs.serve(path, TABULAR)


def test_several_outputs_need_a_name(tmp_path):
    path = graphs.save(tmp_path, [node("Identity", ["x"], ["y"]), node("Neg", ["x"], ["z"])], [("x", FLOAT, [None, 2])],
                       [("y", FLOAT, [None, 2]), ("z", FLOAT, [None, 2])])
    with pytest.raises(NetworkRejected, match=r"several outputs would do \(y, z\)"):
        graphs.serve(path, TABULAR)
    assert graphs.serve(path, TABULAR | {"output": "z"}).run([[1, 2]])[0]["label"] == "0"
