"""GPU models: one YAML file each, in `data/models`, named by the model's key.

Users add files of their own, or files that take a model as `base` and name only what differs. Figures that were not
measured are listed under `estimated`, by their path.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from simgpu import errors, yaml_text
from simgpu.catalog import ceilings, relations
from simgpu.catalog.facts import Amount, Count, Facts, Percent, Positive

DATA = Path(__file__).parent / "data" / "models"

_CUDA = {
    "450": "11.0", "460": "11.2", "465": "11.3", "470": "11.4", "495": "11.5", "510": "11.6", "515": "11.7",
    "520": "11.8", "525": "12.0", "530": "12.1", "535": "12.2", "545": "12.3", "550": "12.4", "555": "12.5",
    "560": "12.6", "565": "12.7", "570": "12.8", "575": "12.9", "580": "13.0", "590": "13.1", "595": "13.2",
    "610": "13.3",
}  # by driver branch  # fmt: skip

MAX_MEMORY_CLOCKS = 8
MAX_FEEDBACK = 0.25  # of leakage on itself; from 1 on, temperatures would grow without end, and cards differ

PciId = Annotated[str, msgspec.Meta(pattern="^0x[0-9A-Fa-f]{8}$")]
Version = Annotated[str, msgspec.Meta(pattern="^([0-9]{1,4}([.][0-9]{1,4})?)?$")]

_MAX_GUESS = 64  # characters
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class MemorySize(Facts, frozen=True):
    """Memory in MiB; `reserved` is what the driver keeps, `bar1` the window on the bus, if there is one."""

    total: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
    reserved: Count = 0
    bar1: Count | None = None

    @property
    def usable(self) -> int:
        """Memory for workloads, in MiB."""
        return self.total - self.reserved


class PowerLimits(Facts, frozen=True):
    """Watts: the default limit, the range that it can be set to, and the draw of an idle card."""

    default: Amount
    min: Amount
    max: Amount
    idle: Positive


class ClockLimits(Facts, frozen=True):
    """MHz. `sm` is the vendor's main clock; `memory` lists the memory clocks that can be set."""

    sm_idle: Amount
    sm_min: Positive
    sm_max: Amount
    sm_step: Positive
    memory_idle: Amount
    memory_max: Amount
    video_idle: Amount | None = None
    video_max: Amount | None = None
    memory: tuple[Amount, ...] = ()
    data_idle: Amount | None = None


class Temperatures(Facts, frozen=True):
    """Limits in degrees Celsius; `shown` is how the vendor's tool prints them."""

    shutdown: Amount
    slowdown: Amount
    gpu_max: Amount
    memory_max: Amount | None = None
    shown: Literal["absolute", "margin"] = "absolute"


class Pci(Facts, frozen=True):
    """Identity on the bus: device and subsystem as `0xDDDDVVVV`; class 0x0302 is a card without display outputs."""

    device: PciId
    subsystem: PciId | None = None
    class_code: Annotated[str, msgspec.Meta(pattern="^0x[0-9A-Fa-f]{4}$")] = "0x0302"
    generation: Annotated[int, msgspec.Meta(ge=1, le=10)] = 4
    width: Annotated[int, msgspec.Meta(ge=1, le=32)] = 16


class Board(Facts, frozen=True):
    """Part numbers and firmware versions of the board; empty where a card reports none."""

    part_number: str = ""
    gpu_part_number: str = ""
    vbios: str = ""
    inforom_image: str = ""
    inforom_oem: Version = ""
    inforom_ecc: Version = ""


class Fans(Facts, frozen=True):
    """Fans of the card itself, in percent: `idle` up to the temperature `start`, `highest` at the model's highest.

    Cards cooled by their server have none, but some of them report one that does not turn.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=8)]
    idle: Percent
    highest: Percent
    start: Amount


class Links(Facts, frozen=True):
    """The fabric between cards (NVLink, Xe Link, XGMI, Ethernet): GB/s for each link and direction.

    Links that are `switched` reach every other card; the others lead from one card to another.
    """

    version: Annotated[int, msgspec.Meta(ge=0, le=99)]
    count: Annotated[int, msgspec.Meta(ge=1, le=64)]
    gb_per_second: Amount
    switched: bool = True


class MigEngines(Facts, frozen=True):
    """Engines of a MIG instance besides its SMs: copy engines, decoders, encoders, JPEG and optical flow engines."""

    copy: Count
    decoders: Count = 0
    encoders: Count = 0
    jpeg: Count = 0
    ofa: Count = 0


class MigProfile(Facts, frozen=True):
    """A profile of MIG instances; memory, its slices, SMs and engines where they are known."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[1-8]g\.[0-9]{1,5}gb([+-][a-z.]{1,12})?$")]
    id: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=8)]
    memory_mib: Count | None = None
    sm: Count | None = None
    memory_slices: Literal[1, 2, 4, 8] | None = None
    engines: MigEngines | None = None


class Model(Facts, frozen=True, kw_only=True):
    """A GPU model; units are in the names of its fields."""

    key: str
    product: str
    vendor: Literal["nvidia", "intel", "amd", "habana"]
    architecture: str
    source: str
    brand: Annotated[str, msgspec.Meta(max_length=23)] | None = None
    memory_mib: MemorySize
    power_w: PowerLimits
    clocks_mhz: ClockLimits
    temperature_c: Temperatures
    pci: Pci
    relations: relations.Relations
    memory_gb_per_second: Amount
    memory_type: Literal["HBM", "GDDR5", "GDDR6", "LPDDR4", "unknown"] = "unknown"
    ecc: Literal["enabled", "disabled", "none"] | None = None
    memory_bus_bits: Count | None = None
    aliases: tuple[str, ...] = ()
    driver: str | None = None
    compute_capability: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,2}[.][0-9]$")] | None = None
    sm_count: Count | None = None
    cores: Count | None = None
    tiles: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    board: Board | None = None
    fans: Fans | None = None
    links: Links | None = None
    row_remap_banks: Count | None = None
    addressing_mode: str | None = None
    c2c_mode: str | None = None
    mig: tuple[MigProfile, ...] = ()
    work_per_clock: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] | None = None
    terminate: Annotated[tuple[ceilings.Ceiling, ...], msgspec.Meta(max_length=64)] = ()
    estimated: tuple[str, ...] = ()

    @property
    def cuda(self) -> str:
        """The CUDA version that its driver supports; empty if unknown."""
        return _CUDA.get((self.driver or "").partition(".")[0], "")

    @property
    def capability(self) -> float:
        """Work per clock in relation to other models: as stated, else the number of SMs or their like."""
        return self.work_per_clock or float(self.sm_count or 1)

    def is_estimated(self, path: str) -> bool:
        """Return whether the figure at a path such as `power_w.idle` is an estimate; most relations are."""
        if path.startswith("relations.") and self.key != relations.CALIBRATED_ON:
            return True
        return any(path == item or path.startswith(f"{item}.") for item in self.estimated)


class Catalog:
    """Models by key, product name and alias."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self.models = models
        self._keys = {plain(key): key for key in models}

    def find(self, name: str) -> Model | None:
        """Return a model by key, product name or alias, ignoring case and separators; None if there is none."""
        key = self._keys.get(plain(name))
        return self.models[key] if key is not None else self._by_product.get(plain(name))

    @functools.cached_property
    def _by_product(self) -> dict[str, Model]:
        names: dict[str, Model] = {}
        for model in self.models.values():
            for name in (model.product, *model.aliases):  # a model made from another may have kept its product name
                names.setdefault(plain(name), model)
        return names

    def get(self, name: str, *, field: str) -> Model:
        """Return what `find` does; raises `InputError` with the known models if there is none."""
        model = self.find(name)
        if model is None:
            close = difflib.get_close_matches(plain(name)[:_MAX_GUESS], self.models)
            guess = f"; did you mean {' or '.join(close)}?" if close else ""
            known = ", ".join(sorted(self.models))
            raise errors.InputError(field, f"no GPU model {errors.shown(name)}{guess}; there are: {known}")
        return model


def plain(name: str) -> str:
    """Return a name in the form in which names are compared: lower case, with dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def load(extra: Iterable[Path] = ()) -> Catalog:
    """Return the built-in models and those in the files or folders given; later ones replace earlier ones."""
    given = _files(extra)
    models = _Models(_documents(given))
    return Catalog(dict(models) if given else models)


def check(key: str, body: Mapping[str, Any], *, where: Path, extra: Iterable[Path] = ()) -> Model:
    """Return the model of a file with this body; raises `InputError` with the file's name."""
    documents = _documents(_files(extra))
    document = _Document(where, documents.get(key))
    document.body = dict(body)
    return _model(key, {**documents, key: document})


def changed(model: Model, changes: Mapping[str, Any], *, where: str) -> Model:
    """Return a model with other figures, merged field by field; raises `InputError` if they contradict each other."""
    return consistent(errors.convert(merged(msgspec.to_builtins(model), changes), Model, field=where), where=where)


def consistent(model: Model, *, where: str) -> Model:
    """Return a model whose figures do not contradict each other; raises `InputError` with those that do."""
    for field, problem in _contradictions(model):
        raise errors.InputError(where, f"{field}: {problem}")
    return model


def _documents(extra: Iterable[Path]) -> dict[str, _Document]:
    documents = {path.stem: _Document(path) for path in sorted(DATA.glob("*.yaml"))}
    for path in extra:
        documents[path.stem] = _Document(path, documents.get(path.stem))
    return documents


class _Document:
    def __init__(self, path: Path, replaced: _Document | None = None) -> None:
        self.path = path
        self.replaced = replaced

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        return parse_yaml(self.path)


class _Models(Mapping[str, Model]):
    """The models of documents, each parsed at its first use: parsing all takes a tenth of a command's start."""

    def __init__(self, documents: dict[str, _Document]) -> None:
        self._documents = documents
        self._parsed: dict[str, Model] = {}

    def __getitem__(self, key: str) -> Model:
        if key not in self._parsed:
            self._parsed[key] = _model(key, self._documents)
        return self._parsed[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)


def _files(extra: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in extra:
        if not path.exists():
            raise errors.InputError(str(path), "no such file or folder")
        found += sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    return found


def parse_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises `InputError` with the file's name."""
    try:
        document = yaml_text.parse_file(path)
    except ValueError as error:
        raise errors.InputError(str(path), str(error)) from None
    if not isinstance(document, dict):
        raise errors.InputError(str(path), "must hold a mapping of fields")
    return document


def _model(key: str, documents: Mapping[str, _Document]) -> Model:
    document = documents[key]
    if not _KEY.fullmatch(key):
        raise errors.InputError(
            str(document.path), "the file's name becomes the model's key: lower-case letters, digits, . _ -"
        )
    body = _resolved(key, document, documents, ())
    whole = {**body, "key": key, "relations": _behaviour(body.get("relations"))}
    model = consistent(errors.convert(whole, Model, field=str(document.path)), where=str(document.path))
    facts = msgspec.to_builtins(model)
    for path in model.estimated:
        if not _has(facts, path):
            raise errors.InputError(str(document.path), f"estimated: there is no field {path}")
    return model


def _contradictions(model: Model) -> Iterator[tuple[str, str]]:
    """Figures that contradict each other: the field, and what is wrong."""
    clocks, power, memory, heat = model.clocks_mhz, model.power_w, model.memory_mib, model.temperature_c
    rising = {
        "clocks_mhz": (clocks.sm_min, clocks.sm_idle, clocks.sm_max),
        "clocks_mhz.memory_max": (clocks.memory_idle, clocks.memory_max),
        "power_w": (power.idle, power.default, power.max),
        "power_w.min": (power.min, power.max),
        "memory_mib.reserved": (memory.reserved, memory.total),
        "temperature_c": (heat.gpu_max, heat.slowdown, heat.shutdown),
    }
    for field, values in rising.items():
        if list(values) != sorted(values):
            yield field, f"{' <= '.join(f'{value:g}' for value in values)} does not hold"
    if (feedback := model.relations.feedback) > MAX_FEEDBACK:
        effect = f"each watt of it warms the die so that {feedback:g} W more leak; at most {MAX_FEEDBACK:g} W may"
        yield "relations.power.leakage", f"{effect}: lower it, or the degrees of heat"
    yield from _ceilings(model)
    if len(clocks.memory) > MAX_MEMORY_CLOCKS:
        yield "clocks_mhz.memory", f"at most {MAX_MEMORY_CLOCKS} clocks, not {len(clocks.memory)}"


def _ceilings(model: Model) -> Iterator[tuple[str, str]]:
    for index, ceiling in enumerate(model.terminate):
        if (ceiling.above, ceiling.below) == (None, None):
            yield f"terminate[{index}]", "needs a value for above or below"
        elif ceiling.below is not None and ceiling.quantity in ceilings.DEMANDS:
            yield f"terminate[{index}].below", f"{ceiling.quantity} is what workloads demand: only above is possible"
        elif ceiling.of == "part" and ceiling.quantity not in ceilings.DEMANDS:
            yield f"terminate[{index}].of", f"parts have no {ceiling.quantity} of their own"


def _behaviour(own: Any) -> Any:
    return merged(relations.load(), own) if isinstance(own, dict) else relations.load() if own is None else own


def _resolved(
    key: str, document: _Document, documents: Mapping[str, _Document], through: tuple[str, ...]
) -> dict[str, Any]:
    """A document merged over its base; a file with a built-in's name may have that as its base."""
    base = document.body.get("base")
    own = {name: value for name, value in document.body.items() if name != "base"}
    if base is None:
        return own
    if base == key and document.replaced is not None:
        return merged(_resolved(key, document.replaced, documents, through), own)
    if not isinstance(base, str) or base not in documents:
        raise errors.InputError(
            str(document.path), f"base: no model {errors.shown(base)}; there are: {', '.join(sorted(documents))}"
        )
    if base in (key, *through):
        raise errors.InputError(str(document.path), f"base: {base} is itself based on {key}")
    parent = _resolved(base, documents[base], documents, (key, *through))
    # Names belong to the model that they are the names of.
    return merged({name: value for name, value in parent.items() if name != "aliases"}, own)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated by `changes`, field by field; lists are replaced."""
    result = dict(base)
    for name, value in changes.items():
        before = result.get(name)
        result[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def _has(body: Mapping[str, Any], path: str) -> bool:
    value: Any = body
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True
