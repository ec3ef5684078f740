"""Keeps the first GPU busy with copies within its memory, through the driver alone.

`python3 -m dev.real_smi.load MIB SECONDS`; standard library only.
"""

from __future__ import annotations

import ctypes
import sys
import time


def main(mib: int, seconds: float) -> None:
    """Copy that much to and fro until the time is over."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    buffers = [ctypes.c_uint64(), ctypes.c_uint64()]
    size = ctypes.c_size_t(mib * 2**20)
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    for buffer in buffers:
        check(cuda.cuMemAlloc_v2(ctypes.byref(buffer), size))
    print("running", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            check(cuda.cuMemcpyDtoDAsync_v2(buffers[0], buffers[1], size, None))
        check(cuda.cuCtxSynchronize())


def check(code: int) -> None:
    """End with an error of the driver's."""
    if code:
        sys.exit(f"CUDA: {code}")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
