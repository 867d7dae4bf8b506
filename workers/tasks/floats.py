"""Numbers on their way to JSON: as short as the network's precision; null or refused where not finite."""

import math

import msgspec
import numpy as np

encode = msgspec.json.Encoder().encode

# By binary exponent e (x < 2^e): the smallest power of ten that rounds x by less than half an FP32 step.
_EXPONENTS = range(-160, 130)
_DIGITS = [math.ceil((24 - e) * math.log10(2)) for e in _EXPONENTS]
_SCALES = np.array([10.0**digits for digits in _DIGITS])
_COARSE = np.array([10.0 ** (digits - 1) for digits in _DIGITS])


def shortened(values: np.ndarray) -> np.ndarray:
    """FP32 (or FP16) values as doubles of up to 9 decimal digits which still round to the very same FP32.

    One digit less is taken where it says the same, as for a number that began as a short decimal: JSON has
    `0.1`, not the widened `0.10000000149011612`. Other arrays come back as they are.
    """
    if values.dtype not in (np.float32, np.float16):
        return values
    wide = values.astype(np.float64)
    at = np.frexp(wide)[1] - _EXPONENTS[0]
    fine, coarse = _SCALES[at], _COARSE[at]
    short = np.rint(wide * coarse) / coarse
    with np.errstate(over="ignore"):  # the largest FP32, rounded up
        same = short.astype(np.float32) == wide
    return np.asarray(np.where(same, short, np.rint(wide * fine) / fine))


def rows(values: np.ndarray) -> list[bytes]:
    """The JSON of each row of a numeric [n, m] array, without brackets; what isn't finite becomes null."""
    if not values.size:
        return [b""] * len(values)
    # One call for all and a cut: no number holds a bracket.
    return encode(shortened(values).tolist())[2:-2].split(b"],[")


def finite_rows(values: np.ndarray) -> np.ndarray | None:
    """None if every value is finite, else which rows of [n, …] are."""
    if values.dtype.kind != "f":
        return None
    finite = np.isfinite(values)
    return None if finite.all() else np.asarray(finite.reshape(len(values), -1).all(axis=1))
