"""gRPC on unix sockets, as kubelets and plugins speak it."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

import pytest

from simgpu.node import rpc


@pytest.mark.parametrize("turns", range(4))
async def test_a_server_that_is_cancelled_while_it_starts_leaves_no_socket_open(tmp_path: Path, turns: int) -> None:
    starting = asyncio.create_task(rpc.serve(tmp_path / "s", {}))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    (outcome,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(outcome, rpc.RpcServer):
        await outcome.stop()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del starting, outcome
        gc.collect()
    assert [str(item.message) for item in found if item.category is ResourceWarning] == []
