"""What users of a cluster change meanwhile: the topology, good and bad, nodes, and annotations.

Each edit takes back what it did, so that the fleet is as before when it ends. GPUs that were gone meanwhile may be new
ones: a controller that started in between has never seen them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from simgpu import vocabulary
from simgpu.kube import resources
from soak import fleet
from soak.counters import Counters
from soak.fleet import Fleet
from soak.gate import Gate
from soak.insisting import insist
from soak.settings import Settings
from soak.world import World

_INVALID = (
    "nodePools: [",
    "nodePools: {whole: {gpus: [{type: nosuch, count: 8}]}}",
    "nodePools: {whole: {gpus: [{type: h100, count: -1}]}}",
    "nodePools: 7",
    "- nodePools",
    "{}",
)
_MODELS = ("a100", "h100", "h200", "t4")


class Edits:
    """The edits by name."""

    def __init__(self, world: World, settings: Settings, counters: Counters) -> None:
        self._client = world.client
        self._fleet: Fleet = world.fleet
        self._chance: random.Random = settings.chance("edits")
        self._counters = counters
        self.kinds: dict[str, Callable[[float], Awaitable[None]]] = {
            "other models": self._other_models,
            "other counts": self._other_counts,
            "invalid topology": self._invalid,
            "deleted topology": self._deleted,
            "deleted node": self._deleted_node,
            "failing GPUs": self._failing,
            "node without a pool": self._without_pool,
        }

    async def run(self, gate: Gate, pause: float, done: Callable[[str], None]) -> None:
        """Edit until cancelled; every kind has its turn before one comes again."""
        while True:
            for kind in self._chance.sample([*self.kinds], len(self.kinds)):
                async with gate.inside():
                    await self.kinds[kind](self._chance.uniform(0.3, 0.3 + pause))
                done(kind)
                await asyncio.sleep(self._chance.uniform(0.3, 0.7) * pause)

    def _spare(self) -> list[str]:
        return [name for name, pool in self._fleet.nodes.items() if pool == fleet.SPARE]

    async def _configure(self, text: str) -> None:
        await insist(lambda: self._fleet.configure(text))

    async def _annotate(self, node: str, annotations: dict[str, str | None]) -> None:
        patch = {"metadata": {"annotations": annotations}}
        await insist(lambda: self._client.merge_patch(resources.NODES, node, patch))

    async def _other_models(self, seconds: float) -> None:
        """Replace the GPUs of spare nodes, and put the others back."""
        model = self._chance.choice(_MODELS)
        for text in (fleet.document(model=model), fleet.document()):
            self._counters.replaced(*self._spare())
            await self._configure(text)
            await asyncio.sleep(seconds)

    async def _other_counts(self, seconds: float) -> None:
        self._counters.replaced(*self._spare())
        await self._configure(fleet.document(count=self._chance.randrange(0, fleet.GPUS)))
        await asyncio.sleep(seconds)
        await self._configure(fleet.document())

    async def _invalid(self, seconds: float) -> None:
        await self._configure(self._chance.choice(_INVALID))
        await asyncio.sleep(seconds)
        await self._configure(fleet.document())

    async def _deleted(self, seconds: float) -> None:
        await insist(lambda: self._client.delete(resources.CONFIG_MAPS, vocabulary.TOPOLOGY, namespace=fleet.NAMESPACE))
        await asyncio.sleep(seconds)
        await self._configure(fleet.document())

    async def _deleted_node(self, seconds: float) -> None:
        name = self._chance.choice([*self._fleet.nodes])
        self._counters.replaced(name)
        await insist(lambda: self._client.delete(resources.NODES, name))
        await asyncio.sleep(seconds)
        await insist(lambda: self._fleet.add_node(name))

    async def _failing(self, seconds: float) -> None:
        name, gpu = self._chance.choice([*self._fleet.pools]), self._chance.randrange(fleet.GPUS)
        self._counters.failed(name, gpu)
        await self._annotate(name, {vocabulary.FAILURES_ANNOTATION: f"{{unhealthy: [{gpu}]}}"})
        await asyncio.sleep(seconds)
        await self._annotate(name, {vocabulary.FAILURES_ANNOTATION: None})

    async def _without_pool(self, seconds: float) -> None:
        name = self._chance.choice(self._spare())
        self._counters.replaced(name)

        async def label(pool: str | None) -> None:
            patch = {"metadata": {"labels": {fleet.LABEL: pool}}}
            await insist(lambda: self._client.merge_patch(resources.NODES, name, patch))

        await label(None)
        await asyncio.sleep(seconds)
        await label(self._fleet.nodes[name])
