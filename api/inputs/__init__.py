"""Checks of a job's input against its network's signature, and its work. No NumPy: this runs for each submit.

The usual input costs one typed decode. Only one that fails it is gone through again, to report all faults.
"""

from collections.abc import Callable, Mapping
from typing import Any

from api.inputs import encoded, rows, tensors, texts

Checker = Callable[[bytes], float]
_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], Checker]] = {
    "tensor": tensors.checker,
    "tabular": rows.checker,
    "text-embedding": texts.checker,
    "text-classification": texts.checker,
    "image-classification": encoded.image_checker,
    "bytes-classification": encoded.bytes_checker,
}


def checker(manifest: Mapping[str, Any], signature: Mapping[str, Any]) -> Checker:
    """A function of the raw JSON of one `input`, to its work: elements, characters / 4, pixels or bytes.

    It raises InputInvalid with all faults; their pointers start with `/input`. Make it once a version.
    """
    return _MAKERS[manifest["task"]](signature)
