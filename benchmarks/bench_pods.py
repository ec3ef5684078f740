"""What the fleet's controller costs those who measure schedulers: its CPU for a pod, and how much later pods run."""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from benchmarks import bench_fleet, frame, scratch
from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import Pod

NODES, PODS, TURNS = 1000, 1000, 3
REST_SECONDS = 10.0


async def figures() -> AsyncIterator[frame.Figure]:
    """Pods of one GPU that the real scheduler places, in turns with the controller running and stopped."""
    async with scratch.cluster(nodes=NODES) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        await bench_fleet.each(range(NODES), lambda number: bench_fleet.label(client, number))
        await bench_fleet.configure(client, "all")
        async with bench_fleet.running(outcome.status.kubeconfig, "--lease-duration", "300") as controller:
            await controller.until(lambda seen: seen["nodes"] == NODES)
            store: Store[Pod] = Store()
            watching = asyncio.create_task(Reflector(client, resources.PODS, store, namespace="default").run())
            await store.synced.wait()
            ours, stopped, cpu = await in_turns(controller, lambda: life(client, store), PODS, TURNS)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    yield frame.Figure("fleet.pod_cpu", statistics.median(cpu), 1.0, "ms", bench_fleet.AIMED)
    while_stopped = "while the controller is stopped"
    yield frame.Figure("fleet.disturbance", statistics.median(ours), statistics.median(stopped), "s", while_stopped)


async def in_turns(
    controller: bench_fleet.Controller, life: Callable[[], Awaitable[float]], pods: int, turns: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of `life` with the controller running and stopped, in turns, and its CPU per pod in ms.

    That is its CPU until everything is written, beyond what it uses in such a time without pods (`fleet.idle…`).
    """
    ours, stopped, cpu = list[float](), list[float](), list[float]()
    await life()  # to warm up
    await controller.until(lambda _seen: True)
    for _ in range(turns):
        before, started = controller.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(REST_SECONDS)
        at_rest = (controller.cpu_seconds() - before) / (time.perf_counter() - started)
        before, started = controller.cpu_seconds(), time.perf_counter()
        ours.append(await life())
        await controller.until(lambda _seen: True, every=1.0)
        spent, taken = controller.cpu_seconds() - before, time.perf_counter() - started
        cpu.append((spent - at_rest * taken) / pods * 1000)
        print(f"  {ours[-1]:.2f} s; {spent:.2f} s of CPU in {taken:.0f} s, at rest {at_rest * 100:.1f} %", flush=True)
        controller.process.send_signal(signal.SIGSTOP)
        try:
            stopped.append(await life())
            print(f"  {stopped[-1]:.2f} s stopped", flush=True)
        finally:
            controller.process.send_signal(signal.SIGCONT)
        await controller.until(lambda _seen: True)
    return ours, stopped, cpu


async def life(client: Client, store: Store[Pod]) -> float:
    """Seconds until pods that are created at once are Running; then they are deleted."""
    started = time.perf_counter()
    await bench_fleet.each(
        range(PODS),
        lambda number: client.create(resources.PODS, bench_fleet.gpu_pod(f"pod-{number}"), namespace="default"),
    )
    while sum(pod.status.phase == "Running" for pod in store) < PODS:
        await asyncio.sleep(0.02)
    spent = time.perf_counter() - started
    await client.delete_all(resources.PODS, namespace="default")
    while len(store):
        await asyncio.sleep(0.05)
    return spent
