"""Where each value of an Arrow binary array lies: addresses as numpy vectors, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class Layout:
    """`data[starts[i]:ends[i]]` is value i; it is null where `valid[i]` is false."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """Number of values."""
        return len(self.starts)

    @staticmethod
    def of(values: Any) -> Layout:
        """Layout of a pyarrow binary, large_binary, string or large_string array.

        `data` is the window of the array's buffer that its values use. Raises TypeError for
        other types.
        """
        kind = values.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            width: type = np.int32
        elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            width = np.int64
        else:
            raise TypeError(f"values are bytes in an Arrow binary array, got {kind}")
        rows = len(values)
        _, offsets, data = values.buffers()
        if rows == 0 or offsets is None or data is None:
            zero = np.zeros(rows, np.int64)
            return Layout(np.zeros(0, np.uint8), zero, zero, _valid(values))
        at: npt.NDArray[Any] = np.frombuffer(offsets, width)[
            values.offset : values.offset + rows + 1
        ]
        first, last = int(at[0]), int(at[-1])
        window = np.frombuffer(data, np.uint8)[first:last]
        ends = at.astype(np.int64) - first
        return Layout(window, ends[:-1], ends[1:], _valid(values))


def _valid(values: Any) -> npt.NDArray[np.bool_]:
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    valid: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid
