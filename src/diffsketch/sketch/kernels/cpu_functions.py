"""Functions that loops call by their address: what has to be compiled for each number of rows.

To compile a loop takes seconds, and such a function alone a tenth of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from diffsketch.sketch.kernels.cpu_lanes import I64

Function: TypeAlias = Any
"""As `function` makes it. Loops take its `address`, good for as long as the function is kept: it is
kept during the call, since two threads may compile the same, and only one of the two stays."""


def function(arguments: int, *settings: int) -> Callable[[Callable[..., None]], Function]:
    """Compile a function of so many 64-bit numbers, or find it among those compiled before.

    It depends on the settings. They go into its name, and with it into that of its cache: Numba
    tells what is in one cache apart by signatures, and these functions have all the same. Two
    processes that compile for other settings at once would leave one with the code of the other.
    """

    def compiled(body: Callable[..., None]) -> Function:
        body.__qualname__ = "_".join([body.__qualname__, *(str(int(each)) for each in settings)])
        return cfunc(types.void(*[types.int64] * arguments), cache=True)(body)

    return compiled


def like(itemsize: int) -> np.float32 | np.float64:
    """A number of the type that has so many bytes, which says what a function is compiled for."""
    return np.float32(0) if itemsize == 4 else np.float64(0)


@intrinsic
def call(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call the function at an address with a tuple of integers."""
    del typingctx, address

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        longs = [
            context.cast(builder, builder.extract_value(args[1], i), kind, types.int64)
            for i, kind in enumerate(sig.args[1])
        ]
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(longs))
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), longs)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen
