"""A bundle that was mixed, cut short or changed is refused, and nothing outside of it is read."""

import json
import os
import shutil
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.refusals import one_line_error
from support.toy_bundle import LABELS, MAX_LENGTH, make_bundle, write_graph, write_manifest
from toprune.errors import UserError
from toprune.run.external_data import external_files
from toprune.run.manifest import GRAPHS, OPENVINO_INT8, PLACE, Manifest
from toprune.tasks import Answer, Classify, Embed, Multilabel, Rank, Tags


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


def not_loaded(bundle: Path, message: str, graph: str = GRAPHS["fp32"]) -> None:
    with one_line_error(message):
        Manifest.load(bundle).verify(bundle, graph)


def change(bundle: Path, **fields: Any) -> None:
    """Rewrite fields of the manifest; "absent" leaves one out."""
    path = bundle / PLACE
    data = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in data.items() if v != "absent"}))


def test_round_trip(bundle: Path):
    manifest = Manifest.load(bundle)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.task == "classify"
    assert manifest.max_length == MAX_LENGTH
    assert manifest.labels == LABELS
    assert manifest.settings == {"stride": None}
    assert manifest.checked == {"batches": 3}
    assert next(iter(json.loads(manifest.to_json()))) == "schema"
    with pytest.raises(FrozenInstanceError):
        manifest.task = "regress"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "task",
    [
        Classify(stride=7),
        Multilabel(classes=3, thresholds=(0.5, 0.25, 0.75)),
        Answer(stride=3, no_answer=True, threshold=1.5),
        Tags(stride=2),
        Embed(pooling="cls", normalize=False),
        Rank(),
    ],
)
def test_the_task_with_its_settings_comes_back(tmp_path: Path, task: Any):
    manifest = Manifest.load(make_bundle(tmp_path, task=task))
    assert manifest.build_task() == task
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert (manifest.labels is None) == (task.NAME in ("answer", "embed", "rank"))


def test_one_name_is_enough_where_classes_stand_alone(tmp_path: Path):
    for name in ("tokens", "multilabel"):
        make_bundle(tmp_path / name, task=name, labels=["one"])
        assert Manifest.load(tmp_path / name).labels == ("one",)


def test_lists_what_matters(bundle: Path):
    (bundle / "onnx/.draft").write_text("")
    (bundle / "report.json").write_text("{}")
    write_manifest(bundle)
    names = {"plan.json", "config.json", "tokenizer.json", "model.safetensors", *GRAPHS.values()}
    assert set(Manifest.load(bundle).files) == names
    assert sorted(path.name for path in (bundle / "onnx").iterdir()) == [
        ".draft",
        "export.json",
        "model.onnx",
        "model_int8.onnx",
    ]


THEIRS = {  # as transformers 5.23 writes it
    "schema_version": 1,
    "export_format": "onnx",
    "components": {"model": {"file": "model.onnx", "metadata": {"export_dtype": "float32"}}},
}


def test_the_export_of_transformers_is_not_ours(bundle: Path):
    (bundle / PLACE).write_text(json.dumps(THEIRS))
    not_loaded(bundle, "comes from the exporter of transformers, not from toprune; move")


def test_transformers_refuses_ours(bundle: Path):
    exporters = pytest.importorskip("transformers.exporters")
    with pytest.raises(ValueError, match="Unknown export format 'toprune'"):
        exporters.ExportedModel.from_pretrained(bundle / "onnx")


def test_the_format_is_ours(bundle: Path):
    assert json.loads((bundle / PLACE).read_text())["export_format"] == "toprune"
    change(bundle, export_format="absent")  # written by an older toprune
    Manifest.load(bundle).verify(bundle)
    change(bundle, export_format="onnx")
    not_loaded(bundle, "export_format must be 'toprune', not 'onnx'; export the bundle again")


def test_the_int8_file_of_openvino(bundle: Path):
    assert Manifest.load(bundle).graph("int8", "openvino") == GRAPHS["int8"]
    not_loaded(bundle, "run 'toprune export --int8-openvino TEXTS", OPENVINO_INT8)
    for suffix in (".xml", ".bin"):
        (bundle / OPENVINO_INT8).with_suffix(suffix).write_text(suffix)
    write_manifest(bundle)
    manifest = Manifest.load(bundle)
    assert manifest.graph("int8", "openvino") == OPENVINO_INT8
    assert manifest.graph("int8", "onnx") == GRAPHS["int8"]
    assert manifest.graph("fp32", "openvino") == GRAPHS["fp32"]
    manifest.verify(bundle, OPENVINO_INT8)
    weights = (bundle / OPENVINO_INT8).with_suffix(".bin")
    weights.write_text("other")
    manifest.verify(bundle)  # another graph runs, so these are not read
    not_loaded(bundle, "openvino_int8.bin is not the file that was exported", OPENVINO_INT8)
    weights.unlink()
    not_loaded(bundle, "keeps weights in 'openvino_int8.bin', which is not", OPENVINO_INT8)


@pytest.mark.parametrize("graph", GRAPHS.values())
def test_a_whole_bundle_verifies(bundle: Path, graph: str):
    Manifest.load(bundle).verify(bundle, graph)


def test_through_a_link_to_the_bundle(bundle: Path, tmp_path: Path):
    link = tmp_path / "link"
    link.symlink_to(bundle)
    Manifest.load(link).verify(link)


def test_weights_may_be_left_out(bundle: Path):
    (bundle / "model.safetensors").unlink()
    (bundle / "config.json").unlink()
    (bundle / "onnx/model_int8.onnx").unlink()
    Manifest.load(bundle).verify(bundle)
    not_loaded(bundle, "model_int8.onnx is missing; copy it again", GRAPHS["int8"])


@pytest.mark.parametrize("name", ["plan.json", "tokenizer.json", "onnx/model.onnx"])
def test_missing(bundle: Path, name: str):
    (bundle / name).unlink()
    not_loaded(bundle, f"{name} is missing")


@pytest.mark.parametrize(
    "name", ["plan.json", "tokenizer.json", "config.json", "model.safetensors", "onnx/model.onnx"]
)
@pytest.mark.parametrize("how", ["tampered", "truncated", "emptied"])
def test_changed(bundle: Path, name: str, how: str):
    path = bundle / name
    old = path.read_bytes()
    middle = len(old) // 2
    flipped = old[:middle] + bytes([old[middle] ^ 1]) + old[middle + 1 :]
    path.write_bytes({"tampered": flipped, "truncated": old[:-1], "emptied": b""}[how])
    not_loaded(bundle, f"{name} is not the file that was exported.*toprune export")


def test_swapped(bundle: Path):
    one, two = (bundle / graph for graph in GRAPHS.values())
    one.rename(bundle / "aside")
    two.rename(one)
    (bundle / "aside").rename(two)
    not_loaded(bundle, r"model.onnx is not the file that was exported")


def test_exported_without_int8(bundle: Path):
    (bundle / GRAPHS["int8"]).unlink()
    write_manifest(bundle)
    not_loaded(
        bundle, "exported without onnx/model_int8.onnx; run 'toprune export --int8", GRAPHS["int8"]
    )


def test_no_bundle_and_no_export(bundle: Path, tmp_path: Path):
    with pytest.raises(UserError, match="no bundle"):
        Manifest.load(tmp_path / "nowhere")
    (bundle / PLACE).unlink()
    with pytest.raises(UserError, match="run 'toprune export"):
        Manifest.load(bundle)


def test_a_bundle_without_a_tokenizer_gets_no_manifest(bundle: Path):
    (bundle / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json is not listed"):
        write_manifest(bundle)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "onnx/../../x",
        "onnx/..",
        "./plan.json",
        "onnx//model.onnx",
        "onnx\\model.onnx",
        "C:/x",
        "onnx/.hidden",
        "",
        "x\n",
    ],
)
def test_paths_that_leave_the_bundle(bundle: Path, name: str):
    files = Manifest.load(bundle).files
    change(bundle, files=files | {name: "0" * 64})
    not_loaded(bundle, "is not a path in the bundle")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "onnx/model.onnx", PLACE])
def test_links_that_leave_the_bundle(bundle: Path, tmp_path: Path, name: str):
    (bundle / name).rename(tmp_path / "outside")  # the same bytes: the hash would be right
    (bundle / name).symlink_to(tmp_path / "outside")
    not_loaded(bundle, "is not a file inside the bundle.*outside")


def test_a_linked_directory_that_leaves_the_bundle(bundle: Path, tmp_path: Path):
    (bundle / "onnx").rename(tmp_path / "outside")
    (bundle / "onnx").symlink_to(tmp_path / "outside")
    not_loaded(bundle, "is not a file inside the bundle")


def test_links_inside_the_bundle(bundle: Path):
    (bundle / "tokenizer.json").rename(bundle / "own.json")
    (bundle / "tokenizer.json").symlink_to("own.json")
    Manifest.load(bundle).verify(bundle)


@pytest.mark.parametrize("kind", ["directory", "pipe", "nothing"])
def test_what_is_no_file(bundle: Path, kind: str):
    path = bundle / "config.json"
    path.unlink()
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to("nothing")
    not_loaded(bundle, "is not a file inside the bundle")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": 2}, "schema 2 is not known.*upgrade"),
        ({"schema": True}, "schema True"),
        ({"schema": "absent"}, "schema None"),
        ({"task": "sing"}, "task 'sing'"),
        ({"task": None}, "task must be str"),
        ({"task": "absent"}, r"lacks the fields \['task'\]"),
        ({"code": "import os"}, r"unknown fields \['code'\]"),
        ({"max_length": 0}, "max_length must be 1 to"),
        ({"max_length": 10**12}, "max_length must be 1 to"),
        ({"max_length": True}, "max_length must be int"),
        ({"max_length": 24.0}, "max_length must be int"),
        ({"pad_token_id": -1}, "pad_token_id"),
        ({"inputs": ["input_ids"]}, "inputs must be"),
        ({"inputs": ["input_ids", "attention_mask", "input_ids"]}, "inputs must be"),
        ({"inputs": ["input_ids", "attention_mask", "pixels"]}, "inputs must be"),
        ({"inputs": [1, 2]}, "inputs must hold strings"),
        ({"labels": ["one"]}, "labels must be names.*2 or more"),
        ({"labels": []}, "labels must be names"),
        ({"task": "tokens", "settings": {}, "labels": []}, "labels must be names of .*tags"),
        ({"task": "regress", "settings": {}}, "labels must be names of classes"),
        ({"task": "answer", "settings": {}}, "labels must be names of classes"),
        ({"settings": "absent"}, r"lacks the fields \['settings'\]"),
        ({"settings": []}, "settings must be dict"),
        ({"settings": {"colour": "red"}}, r"no such setting \(colour\).*export the bundle again"),
        ({"settings": {"stride": -1}}, "overlap by -1 tokens.*export the bundle again"),
        ({"settings": {"stride": True}}, "overlap by True tokens"),
        ({"labels": [0, 1]}, "labels must hold strings"),
        ({"labels": "ab"}, "labels must be list or NoneType"),
        ({"files": []}, "files must be dict"),
        ({"files": {}}, "plan.json is not listed"),
        ({"files": {"plan.json": 7}}, "files must hold strings"),
        ({"files": {"plan.json": "0" * 63}}, "sha256 of plan.json"),
    ],
)
def test_bad_manifests(bundle: Path, fields: dict[str, Any], message: str):
    change(bundle, **fields)
    not_loaded(bundle, message)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000, b"\xff\xfe"])
def test_not_a_manifest(bundle: Path, text: str | bytes):
    (bundle / PLACE).write_bytes(text if isinstance(text, bytes) else text.encode())
    not_loaded(bundle, "export")


def test_a_manifest_that_is_too_large(bundle: Path):
    with (bundle / PLACE).open("wb") as file:
        file.truncate(1 << 30)
    not_loaded(bundle, "larger than")


# External data


def external(location: str, name: str = "words") -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def write_external(bundle: Path, location: str) -> None:
    """A graph that reads a file, in a bundle that is signed as it stands."""
    path = bundle / GRAPHS["fp32"]
    model = write_graph(path)
    model.graph.initializer.append(external(location, "more"))
    path.write_bytes(model.SerializeToString())
    write_manifest(bundle)


def test_external_data_of_the_bundle(bundle: Path):
    (bundle / "onnx/model.onnx.data").write_bytes(bytes(16))
    write_external(bundle, "model.onnx.data")
    Manifest.load(bundle).verify(bundle)
    (bundle / "onnx/model.onnx.data").write_bytes(bytes(15) + b"1")
    not_loaded(bundle, "model.onnx.data is not the file that was exported")
    (bundle / "onnx/model.onnx.data").unlink()
    not_loaded(bundle, "keeps weights in 'model.onnx.data', which is not a file of the bundle")


@pytest.mark.parametrize(
    "location",
    [
        "../../secret",
        "../secret",
        "../onnx/model.onnx",
        "{here}/secret",
        "linked",
        "folder/secret",
        "missing",
        ".",
        "",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_external_data_outside_of_the_bundle(bundle: Path, tmp_path: Path, location: str):
    for place in (tmp_path, bundle):
        (place / "secret").write_bytes(bytes(16))
    write_external(bundle, location.format(here=tmp_path))
    (bundle / "onnx/linked").symlink_to(tmp_path / "secret")
    (bundle / "onnx/folder").symlink_to(tmp_path)
    not_loaded(bundle, "keeps weights in .* not a file of the bundle")


def test_external_data_wherever_a_tensor_can_be(tmp_path: Path):
    def graph(tensor: onnx.TensorProto) -> onnx.GraphProto:
        return helper.make_graph([], "inner", [], [], [tensor])

    def sparse(name: str) -> onnx.SparseTensorProto:
        return onnx.SparseTensorProto(values=external(f"{name}1"), indices=external(f"{name}2"))

    node = helper.make_node("Constant", [], ["x"], value=external("a"))
    node.attribute.append(helper.make_attribute("body", graph(external("b"))))
    node.attribute.append(helper.make_attribute("many", [external("c"), external("d")]))
    node.attribute.append(helper.make_attribute("bodies", [graph(external("e"))]))
    node.attribute.append(helper.make_attribute("sparse", sparse("f")))
    node.attribute.append(helper.make_attribute("sparses", [sparse("g")]))
    inner = helper.make_node("Constant", [], ["x"], value=external("h"))
    function = helper.make_function("own", "F", [], ["x"], [inner], [])
    plain = numpy_helper.from_array(np.ones(4), "plain")
    model = helper.make_model(
        helper.make_graph([node], "outer", [], [], [plain, external("i")]), functions=[function]
    )
    model.graph.sparse_initializer.append(sparse("j"))
    training = model.training_info.add()
    training.initialization.CopyFrom(graph(external("k")))
    training.algorithm.CopyFrom(graph(external("l")))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert external_files(path) == {*"abcdehikl", "f1", "f2", "g1", "g2", "j1", "j2"}


def test_what_is_not_onnx_is_refused_without_reading_on(bundle: Path):
    whole = (bundle / GRAPHS["fp32"]).read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], b"", b"hello", bytes(99), b"\xff" * 99):
        (bundle / GRAPHS["fp32"]).write_bytes(content)
        write_manifest(bundle)
        not_loaded(bundle, "is not a complete ONNX file")


def test_a_copy_is_as_good(bundle: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    Manifest.load(copy).verify(copy)
