"""An engine is a loaded network on a device, ready to run. The only import of ONNX Runtime, on first use."""

import importlib.metadata
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from models.errors import EngineUnavailable, HardwareMissing, HeadraceError, NetworkRejected
from models.settings import HardwareClass

CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named tensor: Open Inference Protocol datatype (FP32, INT64, BYTES …); -1 marks a free dimension.

    `axis` is the file's own name for a free first dimension, where it gives one.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    axis: str | None = None


class Engine(Protocol):
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    providers: tuple[str, ...]

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        """Run once; the named outputs in that order. Several threads may call it.

        Raises EngineFailed with the runtime's message, EngineOutOfMemory where a smaller batch may do,
        ProviderFailed where nothing can run in this process any more.
        """
        ...

    def close(self) -> None: ...


class EngineFailed(HeadraceError):
    """The network could not compute this batch."""

    code = "inference_failed"


class EngineOutOfMemory(EngineFailed):
    """The device ran out of memory."""

    code = "out_of_memory"
    retryable = True


class ProviderFailed(EngineFailed):
    """The device, its driver or its context failed: whatever runs in this process after it would fail too."""

    code = "provider_failed"
    retryable = True


DATATYPES = {
    "tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
    **{f"tensor({name.lower()})": name
       for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")},
}
# Open Inference Protocol datatypes as NumPy's.
DTYPES: Mapping[str, type[np.generic]] = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}
_OUT_OF_MEMORY = ("failed to allocate memory", "bad_alloc", "out of memory", "alloc_failed")
# Faults that leave a CUDA context useless; one that the input caused (an illegal address) looks like one that
# it did not (a device that fell off the bus).
_PROVIDER_FAILED = ("cuda failure", "cudnn failure", "cublas failure", "cudnn_status_", "cublas_status_",
                    "illegal memory access", "device-side assert", "unspecified launch failure")
# One Add of FP32[1]: what a provider must be able to run (onnx.helper, opset 13, IR 8).
_PROBE = bytes.fromhex("08083a340a0e0a01610a0161120162220341646412005a0f0a0161120a0a08080112040a0208"
                       "01620f0a0162120a0a08080112040a02080142040a00100d")


class OnnxEngine:
    """A session of ONNX Runtime on exactly the providers of a hardware class."""

    def __init__(self, session: Any, run_options: Any) -> None:
        self._session = session
        self._run_options = run_options
        self.inputs = tuple(_spec(tensor, "input") for tensor in session.get_inputs())
        self.outputs = tuple(_spec(tensor, "output") for tensor in session.get_outputs())
        self.providers = tuple(session.get_providers())

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        try:
            return self._session.run(outputs, feeds, self._run_options)  # type: ignore[no-any-return]
        except Exception as error:
            raise _run_error(error) from error

    def close(self) -> None:
        """Give the weights back once no run uses them any more."""
        self._session = None


def open_engine(path: Path | str, hardware: HardwareClass) -> OnnxEngine:
    """Load an ONNX file on the providers of a class, and on no other in their stead.

    Raises NetworkRejected (the file can't be served, with the reason), HardwareMissing (a provider of the
    class didn't start), EngineUnavailable (no ONNX Runtime, or no memory for the weights).
    """
    path = Path(path)
    runtime = _runtime(hardware)
    if not path.is_file():
        raise NetworkRejected(f"{path.name} is missing from the network's folder")
    # ONNX Runtime itself refuses external data outside the file's folder, links followed; a test checks that.
    session = _session(runtime, str(path), hardware)
    run_options = runtime.RunOptions()
    run_options.log_severity_level = 4
    return OnnxEngine(session, run_options)


def available(hardware: HardwareClass) -> None:
    """Start every provider of a class on a tiny graph.

    Raises HardwareMissing or EngineUnavailable, which say what is missing and what to install.
    """
    runtime = _runtime(hardware)
    known = runtime.get_available_providers()
    for provider in hardware.providers:
        if provider not in known:
            raise HardwareMissing(
                f"hardware class {hardware.name!r} needs {provider}, which the installed ONNX Runtime does "
                f"not have (it has {', '.join(known)}). {_advice(hardware)}")
    try:
        session = _session(runtime, _PROBE, hardware)
        session.run(None, {"a": np.zeros(1, np.float32)})
    except (NetworkRejected, RuntimeError) as error:
        raise HardwareMissing(f"hardware class {hardware.name!r} does not start: {error}. {_advice(hardware)}"
                              ) from error


def _runtime(hardware: HardwareClass) -> Any:
    # Else the Linux wheel of 1.32 looks up a telemetry host and writes a file to the temporary folder (seen
    # with strace), and `disable_telemetry_events()` comes too late.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime as runtime  # noqa: PLC0415 - 0.2 s and 44 MB, only for processes that run networks
    except ImportError as error:
        raise EngineUnavailable(f"ONNX Runtime can't be imported ({error}). {_advice(hardware)}") from error
    if not hasattr(runtime, "InferenceSession"):  # what is left when one of two wheels was removed
        raise EngineUnavailable(f"The installed ONNX Runtime is broken. {_advice(hardware)}")
    if hardware.providers != (CPU,) and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # CUDA and cuDNN from their own wheels; prints what it misses, raises nothing
    return runtime


def _session(runtime: Any, source: str | bytes, hardware: HardwareClass) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = hardware.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors come as exceptions; nothing on stderr beside them
    if hardware.threads > 1:
        # Else the threads burn a core between two runs, and denormals are 10 to 100 times slower. A session
        # of one thread has no others: the second entry would only change the thread that loads it (measured).
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    if isinstance(source, bytes) and CPU not in hardware.providers:
        # Only for the probe: in a real network some shape operators have no kernel but the CPU's.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    wanted = [(name, {key: str(value) for key, value in hardware.options.get(name, {}).items()})
              for name in hardware.providers]
    try:
        # In a thread that ends with it, and takes the flag for denormals along: otherwise it stays with the
        # caller, whose own calculations lose them too.
        with ThreadPoolExecutor(1) as loader, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unknown provider is reported below, as an error
            session = loader.submit(runtime.InferenceSession, source, options, providers=wanted,
                                    enable_fallback=0).result()
    except Exception as error:
        raise _load_error(error, source, hardware) from error
    session.disable_fallback()  # a device that fails must not be replaced by the CPU while running
    missing = [name for name in hardware.providers if name not in session.get_providers()]
    if missing:
        raise HardwareMissing(f"hardware class {hardware.name!r}: {', '.join(missing)} did not start, and "
                              f"nothing else may stand in for it. {_advice(hardware)}")
    return session


def _load_error(error: Exception, source: str | bytes, hardware: HardwareClass) -> HeadraceError:
    text = _readable(error)
    if isinstance(source, str):
        for folder in (Path(source).parent.resolve(), Path(source).parent):
            text = text.replace(f"{folder}/", "")  # where files lie on this machine is nobody's business
    if any(sign in text.lower() for sign in _OUT_OF_MEMORY):
        return EngineUnavailable(f"no memory for the weights on {hardware.name!r}: {text}")
    return NetworkRejected(f"ONNX Runtime can't load it: {text}")


def _run_error(error: Exception) -> EngineFailed:
    text = _readable(error)
    if isinstance(error, MemoryError) or any(sign in text.lower() for sign in _OUT_OF_MEMORY):
        return EngineOutOfMemory(text)
    if any(sign in text.lower() for sign in _PROVIDER_FAILED):
        return ProviderFailed(text)
    return EngineFailed(text)


def _readable(error: Exception) -> str:
    """`[ONNXRuntimeError] : 1 : FAIL : what happened` without its front, one line of up to 500 characters."""
    text = " ".join(str(error).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text if len(text) <= 500 else text[:499] + "…"


def _advice(hardware: HardwareClass) -> str:
    wheels = {}
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            wheels[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if len(wheels) > 1:
        return ("Both onnxruntime and onnxruntime-gpu are installed, and overwrite each other: uninstall "
                "both, then install one of headrace[cpu] and headrace[gpu]")
    if hardware.providers == (CPU,):
        return "Install headrace[cpu]"
    if "onnxruntime-gpu" in wheels:
        return ("Check the NVIDIA driver (nvidia-smi) and the CUDA libraries: headrace[gpu] brings CUDA 13 "
                "and cuDNN 9")
    return "Uninstall onnxruntime, then install headrace[gpu], on a machine with an NVIDIA driver"


def _spec(tensor: Any, side: str) -> TensorSpec:
    datatype = DATATYPES.get(tensor.type)
    if datatype is None:
        fix = f"use tensors of {', '.join(sorted(DTYPES))}"
        if tensor.type.startswith("seq(map"):
            fix = "export it without ZipMap (skl2onnx: options={'zipmap': False})"
        raise NetworkRejected(f"{side} {tensor.name!r} is a {tensor.type}, which is not served: {fix}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in tensor.shape)
    free = bool(shape) and shape[0] == -1
    return TensorSpec(tensor.name, datatype, shape, tensor.shape[0] if free else None)
