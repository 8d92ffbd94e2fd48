"""Extensions of Triton's interpreter for Liger's kernels.

The interpreter passes Python floats to kernels unchanged, where a GPU gets a scalar tensor, and
lacks the functions of libdevice.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import liger_kernel.ops.cross_entropy
    import liger_kernel.ops.geglu
    import liger_kernel.ops.layer_norm
    import liger_kernel.ops.rms_norm
    import numpy
    import triton
    import triton.language as tl
    from triton.runtime import interpreter

    as_it_is = interpreter._implicit_cvt

    def converted(argument: object) -> object:
        """Return a float as a float32 tensor; others are converted by the interpreter."""
        if isinstance(argument, float):
            handle = interpreter.TensorHandle(numpy.array([argument], numpy.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return as_it_is(argument)

    @triton.jit
    def tanh(x):
        """Hyperbolic tangent by the sigmoid."""
        return 2 * tl.sigmoid(2 * x) - 1

    @triton.jit
    def rsqrt(x):
        """One over the square root."""
        return tl.rsqrt(x)

    interpreter._implicit_cvt = converted
    liger_kernel.ops.rms_norm.rsqrt = rsqrt
    liger_kernel.ops.layer_norm.rsqrt = rsqrt
    liger_kernel.ops.geglu.tanh = tanh
    liger_kernel.ops.cross_entropy.tanh = tanh
