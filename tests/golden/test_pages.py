"""Every identity's page: as it was, as Prometheus' own tools read it, and as its exporter prints it."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import parser

from simgpu.catalog import models
from simgpu.identities import identity, labels, render
from simgpu.machines import box, documents, fleet, users
from simgpu.machines.health import DeviceFailure
from simgpu.topology import devices, reading
from tests.fixtures import boxes

PAGES = Path(__file__).parent / "pages"

page = boxes.page


@pytest.mark.parametrize("name", identity.names())
def test_a_page_stays_what_it_was(name: str) -> None:
    golden = PAGES / f"{name}.txt"
    text = page(name)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGES.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "if this is meant, run again with UPDATE_GOLDEN=1 and look at the difference"


@pytest.mark.parametrize("name", ["dcgm", "dcgm-4.8.3", "dcgm-4.9", "nvidia-smi"])
def test_a_page_of_divided_cards_stays_what_it_was(name: str) -> None:
    text, golden = render.Renderer(divided().machine(), identity.load(name)).page().decode(), PAGES / f"mig-{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "if this is meant, run again with UPDATE_GOLDEN=1 and look at the difference"
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    assert len({(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}) == len(samples)


def divided() -> fleet.Fleet:
    """A node with one card that is divided, with pods on three of its instances, and a whole card with one."""
    made = fleet.Fleet(seed=1)
    entry = "{devices: [0], mig-enabled: true, mig-devices: {1g.18gb: 2, 2g.35gb: 1, 3g.71gb: 1}}"
    text = f"nodePools: {{p: {{gpus: [{{type: h200, count: 2}}], mig: {{config: [{entry}]}}}}}}"
    node = made.place("node-1", reading.parse(text, boxes.CATALOG).pools["p"])
    first, second = node.ids
    ref = users.PodRef("train-0", "team", "main", "uid-1")
    on_parts = tuple(users.User(ref, users.Range(80, 80), 12_000, part=number) for number in (7, 8))
    other = users.PodRef("serve-0", "team", "main", "uid-2")
    busy = users.User(other, users.Range(50, 50), 60_000, part=2)
    made.use(node, {first: (*on_parts, busy), second: (users.User(other, users.Range(50, 50), 100_000),)})
    for now in range(1, 31):
        made.step(float(now), clock=1_790_000_000.0 + now)
    return made


@pytest.mark.parametrize("name", identity.names())
def test_prometheus_python_parser_reads_every_page(name: str) -> None:
    text = page(name)
    families = list(parser.text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    assert len(samples) == sum(1 for line in text.splitlines() if not line.startswith("#"))
    seen = {(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}
    assert len(seen) == len(samples)
    if name != "xpum":  # prints all comments first, which the parser does not connect
        assert all(family.documentation for family in families)


OF_VENDOR = {"nvidia": "dcgm", "intel": "xpum", "amd": "amd", "habana": "gaudi"}


@pytest.mark.parametrize("model", boxes.CATALOG.models.values(), ids=lambda model: model.key)
def test_a_card_of_every_model_is_on_the_page_of_its_vendors_exporter(model: models.Model) -> None:
    machine = boxes.busy(model.key).machine
    text = render.Renderer(machine, identity.load(OF_VENDOR[model.vendor])).page().decode()
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    assert len(samples) > 20
    assert all(math.isfinite(sample.value) for sample in samples)
    power = machine.column("power_average")
    assert model.power_w.idle < power[0] < model.power_w.default * 1.05  # steps of a second are coarse
    assert machine.column("temperature")[0] < model.temperature_c.gpu_max
    if model.vendor == "nvidia":
        assert f'modelName="{model.product}"' in text


def smi_page(model: str) -> str:
    return render.Renderer(boxes.busy(model).machine, identity.load("nvidia-smi")).page().decode()


def test_a_fan_turns_faster_on_the_card_at_work() -> None:
    busy, idle = map(
        float, re.findall(r"^nvidia_smi_fan_speed_ratio\{.* (\S+)$", smi_page("rtx-6000-ada"), re.MULTILINE)
    )
    assert (busy > idle, idle) == (True, 0.3)
    assert "nvidia_smi_fan_speed_ratio{" not in smi_page("h200")


def test_a_card_whose_ecc_is_off_counts_no_errors() -> None:
    text = smi_page("rtx-a6000")
    assert re.findall(r"^nvidia_smi_ecc_mode_current\{.* (\S+)$", text, re.MULTILINE) == ["0", "0"]
    assert "nvidia_smi_ecc_errors_corrected_volatile_total{" not in text
    assert "nvidia_smi_ecc_errors_corrected_volatile_total{" in smi_page("a40")


def test_dcgm_prints_its_families_in_the_order_of_their_fields_and_labels_in_theirs() -> None:
    lines = [line for line in page("dcgm").splitlines() if not line.startswith("#")]
    names = list(dict.fromkeys(line.split("{")[0] for line in lines))
    assert names[:4] == [
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_MEM_CLOCK",
        "DCGM_FI_DEV_MEMORY_TEMP",
        "DCGM_FI_DEV_GPU_TEMP",
    ]
    assert names[-1] == "DCGM_FI_PROF_PCIE_RX_BYTES"
    assert len(names) == 25
    labels = re.findall(r'(\w+)="', lines[0])
    assert labels == [
        "gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION", "container",
        "namespace", "pod",
    ]  # fmt: skip
    assert "pod=" not in lines[1]
    power = next(line for line in lines if line.startswith("DCGM_FI_DEV_POWER_USAGE"))
    assert re.search(r" \d+\.\d{6}$", power)


def test_the_newer_dcgm_has_new_names_and_units() -> None:
    old, new = page("dcgm"), page("dcgm-4.9")
    clock = float(re.findall(r"^DCGM_FI_DEV_SM_CLOCK\{.* (\S+)$", old, re.MULTILINE)[0])
    assert float(re.findall(r"^DCGM_FI_DEV_SM_CLOCK_HERTZ\{.* (\S+)$", new, re.MULTILINE)[0]) == clock * 1e6
    assert "DCGM_FI_DEV_FB_CAPACITY_BYTES" in new
    assert 'hostname="sim-0"' in new
    assert 'hostname="sim-0"' in page("dcgm-4.8.3")
    assert "# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL gauge" in page("dcgm-4.8.3")


def test_xpu_manager_prints_comments_first_and_sorted_lines_after_them() -> None:
    lines = page("xpum").splitlines()
    comments = [line.startswith("#") for line in lines]
    assert comments == sorted(comments, reverse=True)
    samples = [line for line in lines if not line.startswith("#")]
    assert samples == sorted(samples)
    assert any(re.search(r"xpum_frequency_mhz\{.*\} \d+\.0$", line) for line in samples)


def test_collectd_stamps_its_samples() -> None:
    assert all(line.endswith(" 1700000060000") for line in page("collectd").splitlines() if not line.startswith("#"))


def test_amd_has_pod_labels_on_idle_cards_too() -> None:
    lines = [line for line in page("amd").splitlines() if line.startswith("gpu_gfx_activity")]
    assert 'pod="train-0"' in lines[0]
    assert 'pod=""' in lines[1]


def test_tiles_have_series_of_their_own() -> None:
    made = boxes.make("max-1550", 1)
    wanted = documents.read({"Name": "w", "Profile": [{"Load": 100}], "Devices": ["card0.1"]})
    made.admit(wanted.profile, wanted.devices)
    for second in range(1, 4):
        made.step(float(second), clock=0.0)
    text = render.Renderer(made.machine, identity.load("xpum")).page().decode()
    ratios = dict(re.findall(r'^xpum_engine_ratio\{.*?(sub_dev="\d"|),?src="\w+"\} (\S+)$', text, re.MULTILINE))
    assert ratios == {'sub_dev="0"': "0.0", 'sub_dev="1"': "1.0", "": "0.5"}


def values(text: str, family: str, *shown: str) -> dict[tuple[str, ...], float]:
    """Numbers of a family by some of its labels."""
    return {
        tuple(sample.labels.get(name, "") for name in shown): sample.value
        for found in parser.text_string_to_metric_families(text)
        for sample in found.samples
        if sample.name == family
    }


def show(made: box.Box, name: str) -> str:
    return render.Renderer(made.machine, identity.load(name)).page().decode()


def test_work_on_a_card_is_done_by_all_of_its_tiles() -> None:
    text = show(boxes.busy("max-1550", 1), "xpum")
    for family, whole in (("xpum_power_watts", 2.0), ("xpum_memory_used_bytes", 2.0), ("xpum_engine_ratio", 1.0)):
        found = values(text, family, "sub_dev", "card")
        assert found["0", ""] == found["1", ""]
        assert found["0", ""] * whole == pytest.approx(found["", ""], rel=1e-4)


@pytest.mark.parametrize(("load", "fluctuation"), [(0, 0), (30, 20), (100, 0)])
def test_execution_units_work_wait_or_rest(load: int, fluctuation: int) -> None:
    made = boxes.make("max-1550")
    step = {"Load": load, "Fluctuation": fluctuation}
    wanted = documents.read({"Name": "w", "Profile": [step], "Devices": ["card0"]})
    made.admit(wanted.profile, wanted.devices)
    for second in range(1, 20):
        made.step(float(second), clock=0.0)
    text = show(made, "xpum")
    kinds = [values(text, f"xpum_eu_{kind}_ratio", "dev_file", "sub_dev") for kind in ("active", "stall", "idle")]
    assert len(kinds[0]) == 2 * 3
    for row in kinds[0]:
        assert sum(kind[row] for kind in kinds) == pytest.approx(1, abs=2e-4)
        assert min(kind[row] for kind in kinds) >= 0
    assert (kinds[1]["card0", ""] > 0) == (load > 0)


def test_xpu_manager_names_both_ends_of_its_links_and_tells_the_power_of_cards() -> None:
    text = show(boxes.busy("max-1550", 3), "xpum")
    ends = ("local_device_id", "local_subdevice_id", "remote_device_id", "remote_subdevice_id")
    rates = values(text, "xpum_xelink_throughput", *ends)
    assert set(rates) == {(a, t, b, t) for a in "012" for b in "012" if a != b for t in "01"}
    assert {rate > 0 for (local, *_), rate in rates.items() if local == "0"} == {True}
    assert {rate for (local, *_), rate in rates.items() if local != "0"} == {0.0}
    topology = values(text, "xpum_topology_link", *ends, "lane_count")
    assert {lanes for (*_, lanes), code in topology.items() if code == 1} == {"16"}
    assert {local == remote for (local, _, remote, _, _), code in topology.items() if code == 0} == {True}
    sent = values(
        text, "xpum_fabric_tx_bytes_total", "dev_file", "sub_dev", "dst_dev_file", "dst_pci_bdf", "dst_sub_dev"
    )
    assert ("card0", "0", "card2", "0000:03:02.0", "0") in sent
    assert set(values(text, "xpum_xelink_port_status", "device_id")) == {("0",), ("1",), ("2",)}
    assert re.search(r'^xpum_power_watts\{node="sim-0",card="2147483651",src="sum"\} ', text, re.MULTILINE)


def test_a_card_without_peers_has_no_links() -> None:
    assert "xpum_topology_link{" not in show(boxes.busy("max-1550", 1), "xpum")
    assert "gpu_xgmi_nbr_0_beats_tx{" not in show(boxes.busy("mi300x", 1), "amd")


def test_a_card_without_peers_sends_them_nothing() -> None:
    alone, together = (show(boxes.busy("h200", count), "dcgm") for count in (1, 2))
    assert values(alone, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL_total", "gpu") == {("0",): 0.0}
    assert values(together, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL_total", "gpu")["0",] > 0
    assert boxes.busy("h200", 1).machine.column("fabric_bytes").tolist() == [0.0]


def test_amd_tells_what_goes_to_each_neighbour() -> None:
    text = show(boxes.busy("mi300x", 4), "amd")
    links = values(text, "gpu_xgmi_link_tx", "gpu_id", "link_index")
    assert {index for gpu, index in links if gpu == "0"} == {"0", "1", "2", "3"}
    assert links["0", "0"] == 0
    assert links["0", "1"] == links["0", "3"] > 0
    beats = values(text, "gpu_xgmi_nbr_1_beats_tx", "gpu_id")["0",]
    assert beats * 32 / 1000 == pytest.approx(links["0", "2"], rel=1e-6)
    assert "gpu_xgmi_nbr_3_tx_thrput{" not in text


def test_collectd_tells_of_tiles_and_ports() -> None:
    text = show(boxes.busy("max-1550", 2), "collectd")
    clocks = values(
        text, "collectd_gpu_sysman_frequency_mhz", "dev_file", "sub_dev", "type", "function", "throttled_by"
    )
    assert (
        clocks["card0", "1", "request", "max", "average-power"] > clocks["card0", "1", "actual", "max", "average-power"]
    )
    assert ("card1", "0", "actual", "min", "") in clocks
    ports = values(text, "collectd_gpu_sysman_fabric_port_ratio", "dev_file", "port", "remote", "direction")
    assert len(ports) == 2 * 16 * 2
    assert 0 < ports["card0", "00000000.00000001.08", "00000001.00000001.08", "write"] <= 1
    heat = values(text, "collectd_gpu_sysman_temperature_celsius", "dev_file", "sub_dev", "location")
    assert heat["card0", "0", "global-min"] == min(heat["card0", "0", f"{place}-min"] for place in ("gpu", "memory"))
    limits = values(text, "collectd_gpu_sysman_power_ratio", "dev_file", "limit")
    assert limits.keys() == {(card, limit) for card in ("card0", "card1") for limit in ("sustained", "burst")}
    labels = re.findall(r'(\w+)="', next(line for line in text.splitlines() if "frequency_mhz{" in line))
    assert labels[:2] == ["job", "instance"]
    assert labels[2:] == sorted(labels[2:])


@pytest.mark.parametrize(("model", "kind"), [("dg1", "LPDDR4"), ("flex-170", "GDDR6"), ("max-1550", "HBM")])
def test_collectd_names_the_kind_of_memory(model: str, kind: str) -> None:
    found = values(show(boxes.busy(model, 1), "collectd"), "collectd_gpu_sysman_memory_used_bytes", "type")
    assert set(found) == {(kind,)}


def test_nvidia_gpu_exporter_tells_of_mig_instances() -> None:
    made = boxes.make("h200", 2, mig=("1g.18gb", "3g.71gb"))
    wanted = documents.read({"Name": "w", "Profile": [{"Load": 60}], "Devices": ["nvidia0.2"]})
    made.admit(wanted.profile, wanted.devices)
    for second in range(1, 4):
        made.step(float(second), clock=0.0)
    text = show(made, "nvidia-smi")
    first = made.devices[0].uuid.removeprefix("GPU-")
    information = values(text, "nvidia_smi_mig_info", "uuid", "gpu_instance_id", "compute_instance_id", "profile")
    assert (first, "2", "0", "3g.71gb") in information
    assert len(values(text, "nvidia_smi_mig_info", "mig_uuid")) == 4
    active = values(text, "nvidia_smi_mig_graphics_activity_ratio", "uuid", "gpu_instance_id")
    assert active[first, "2"] == pytest.approx(0.6, abs=0.01)
    assert active[first, "7"] == 0
    rates = values(text, "nvidia_smi_mig_pcie_throughput_rx_bytes_per_second", "uuid", "gpu_instance_id")
    whole = values(text, "nvidia_smi_pcie_throughput_rx_bytes_per_second", "uuid")
    assert rates[first, "2"] == pytest.approx(whole[first,], rel=1e-3)
    sizes = {
        part: values(text, f"nvidia_smi_mig_memory_{part}_bytes", "uuid", "gpu_instance_id")[first, "2"]
        for part in ("total", "used", "free")
    }
    assert sizes["total"] == sizes["used"] + sizes["free"] == 71424 * 2**20
    assert "nvidia_smi_utilization_gpu_ratio{" not in text


def test_a_card_before_hopper_tells_no_activity_of_its_instances() -> None:
    text = show(boxes.busy("a100", 1, mig=("1g.5gb",)), "nvidia-smi")
    assert "nvidia_smi_mig_info{" in text
    assert "nvidia_smi_mig_graphics_activity_ratio{" not in text


def test_errors_are_counted_by_code_once_they_came() -> None:
    made = boxes.make("h200", 1)
    assert "nvidia_smi_xid_errors_total{" not in show(made, "nvidia-smi")
    metrics = {"hangs": {"Func": "constant", "Min": 1, "Unit": "absolute"}}
    wanted = documents.read({"Name": "w", "Profile": [{"Load": 10, "Metrics": metrics}], "Devices": ["nvidia0"]})
    made.admit(wanted.profile, wanted.devices)
    for second in range(1, 20):
        made.step(float(second), clock=1_700_000_000.0 + second)
    text = show(made, "nvidia-smi")
    assert values(text, "nvidia_smi_xid_errors_total", "xid").keys() == {("43",)}
    [(code, came)] = values(text, "nvidia_smi_xid_last_timestamp_seconds", "xid").items()
    assert code == ("43",)
    assert 1_700_000_001 <= came <= 1_700_000_019
    made.drop(list(made.workloads()))
    made.step(30.0, clock=1_700_000_030.0)
    assert values(show(made, "nvidia-smi"), "nvidia_smi_xid_last_timestamp_seconds", "xid") == {("43",): came}
    made.fail({0: DeviceFailure.LOST})
    made.step(31.0, clock=1_700_000_031.0)
    text = show(made, "nvidia-smi")
    assert values(text, "nvidia_smi_xid_errors_total", "xid")["79",] == 1
    assert values(text, "nvidia_smi_xid_last_timestamp_seconds", "xid").keys() == {("43",), ("79",)}


def test_gaudi_says_where_it_runs() -> None:
    text = page("gaudi")
    assert values(text, "habanalabs_kube_info", "node", "hostname", "podName", "podIP", "namespace") == {
        ("sim-0", "sim-0", "", "", ""): 1.0
    }
    assert len(values(text, "habanalabs_nic_port_status", "id", "port")) == 2 * 24


def test_labels_of_many_devices_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of many devices put families' labels into kept texts for each page anew."""
    for name, model in boxes.OWN.items():
        machine = boxes.busy(model, 3).machine
        kept = render.Renderer(machine, identity.load(name)).page()
        with monkeypatch.context() as changed:
            changed.setattr(labels, "MAX_CACHED_ROWS", 0)
            changed.setattr(labels, "BLOCK", 2)
            assert render.Renderer(machine, identity.load(name)).page() == kept


def test_instances_take_the_place_of_their_card() -> None:
    made = boxes.busy("h200", 1, mig=("1g.18gb", "3g.71gb"))
    text = render.Renderer(made.machine, identity.load("dcgm")).page().decode()
    lines = re.findall(
        r'^DCGM_FI_DEV_FB_FREE\{.*GPU_I_PROFILE="(\S+?)",GPU_I_ID="(\d)"(.*)\} (\d+)$', text, re.MULTILINE
    )
    assert [line[:2] for line in lines] == [("1g.18gb", "7"), ("3g.71gb", "2")]
    free, busy = lines  # the load on the card is on the instance that nvidia-smi lists first
    assert (free[3], "pod=" in free[2]) == ("16384", False)
    assert int(busy[3]) < 71424
    assert 'pod="train-0"' in busy[2]
    assert 'UUID="GPU-' in text


def test_several_workloads_on_one_card_can_be_told_apart() -> None:
    made = boxes.busy("h200", 1)
    for name, load in (("a", 30), ("b", 20)):
        document = {
            "Name": name,
            "Profile": [{"Load": load}],
            "Devices": ["nvidia0"],
            "Pod": {"Name": name, "Namespace": "x"},
        }
        wanted = documents.read(document)
        made.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    made.step(61.0, clock=0.0)
    shown = identity.with_workloads(identity.load("dcgm"))
    text = render.Renderer(made.machine, shown).page().decode()
    own = values(text, "DCGM_FI_DEV_GPU_UTIL", "pod", "vgpu")
    assert (own["a", "1"], own["b", "2"]) == (30, 20)
    series = [
        (sample.name, sample.labels.get("vgpu"), sample.value)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    ]
    names = {name for name, _, _ in series}
    assert len(names) > 20
    assert {
        number: {name for name, vgpu, _ in series if vgpu == number} for number in ("0", "1", "2")
    } == dict.fromkeys(("0", "1", "2"), names)
    shared = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"}
    for name in names - shared:
        assert len({value for other, _, value in series if other == name}) == 1, name


def test_amd_tells_what_each_process_occupies() -> None:
    made = boxes.busy("mi300x")
    wanted = documents.read({"Name": "w", "Profile": [{"Load": 15}], "Devices": ["card0"], "Pod": {"Name": "b"}})
    made.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    made.step(61.0, clock=0.0)
    found = values(show(made, "amd"), "gpu_process_cu_occupancy", "pod", "process_id", "gpu_id")
    assert [(pod, gpu) for pod, _, gpu in found] == [("train-0", "0"), ("b", "0")]
    assert len({process for _, process, _ in found}) == 2
    first, second = found.values()
    assert 0 < second < first
    assert first + second <= 100


def test_a_pod_on_one_instance_is_named_there_only() -> None:
    made = boxes.make("h200", 1, mig=("1g.18gb", "3g.71gb"))
    document = {
        "Name": "w",
        "Profile": [{"Load": 100}],
        "Devices": ["nvidia0.7"],
        "Pod": {"Name": "p", "Namespace": "n"},
    }
    wanted = documents.read(document)
    made.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    made.step(1.0, clock=0.0)
    text = render.Renderer(made.machine, identity.load("dcgm")).page().decode()
    active = dict(
        re.findall(r'^DCGM_FI_PROF_GR_ENGINE_ACTIVE\{.*GPU_I_ID="(\d)".*?(?:pod="\w")?\} (\S+)$', text, re.MULTILINE)
    )
    assert active == {"7": "1.000000", "2": "0.000000"}
    assert re.findall(r'GPU_I_ID="(\d)",.*pod="p"', text) == ["7"] * text.count('pod="p"')
    assert "DCGM_FI_DEV_GPU_UTIL" not in text


def test_an_exporter_shows_its_own_vendors_devices() -> None:
    wanted = devices.BoxConfig((devices.GpuEntry("h200"), devices.GpuEntry("max-1550")))
    made = box.Box(devices.build(wanted, boxes.CATALOG, node="n"), seed=1, hostname="n")
    made.step(1.0, clock=0.0)
    for name, product in (("dcgm", "NVIDIA H200"), ("xpum", "Intel(R) Data Center GPU Max 1550")):
        text = render.Renderer(made.machine, identity.load(name)).page().decode()
        assert set(re.findall(r'(?:modelName|dev_name)="(.*?)"', text)) == {product}


def test_a_page_that_is_sent_slowly_is_of_one_moment() -> None:
    made = boxes.busy("mi300x", 4)
    renderer = render.Renderer(made.machine, identity.load("amd"))
    pieces = renderer.chunks()
    first = [next(pieces) for _ in range(3)]
    wanted = documents.read({"Name": "w", "Profile": [{"Load": 50}], "Devices": ["card3"], "Pod": {"Name": "tardy"}})
    made.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    made.step(61.0, clock=0.0)
    assert b"tardy" not in b"".join([*first, *pieces])
    assert b"tardy" in renderer.page()


def test_stamps_of_a_page_that_is_sent_slowly_are_of_its_moment() -> None:
    made = boxes.busy("dg1")
    pieces = render.Renderer(made.machine, identity.load("collectd")).chunks()
    first = next(pieces)
    made.step(61.0, clock=1_700_000_061.0)
    text = b"".join([first, *pieces]).decode()
    assert set(re.findall(r" (17\d{11})$", text, re.MULTILINE)) == {"1700000060000"}


def test_pages_that_are_sent_at_the_same_time_make_each_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = boxes.busy("h200", 4)
    built: list[labels.Texts] = []

    class Counted(labels.Texts):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            built.append(self)

    monkeypatch.setattr(labels, "Texts", Counted)
    renderer = render.Renderer(made.machine, identity.load("dcgm"))
    renderer.page()
    alone = len(built)
    under_way = renderer.chunks()
    next(under_way)
    wanted = documents.read({"Name": "w", "Profile": [{"Load": 50}], "Devices": ["nvidia3"], "Pod": {"Name": "tardy"}})
    made.admit(wanted.profile, wanted.devices, pod=wanted.pod)
    made.step(61.0, clock=0.0)
    slow = renderer.chunks()
    next(slow)
    list(under_way)
    assert len(built) == alone
    list(slow)
    assert len(built) <= 2 * alone


def test_a_workload_over_several_models_ends_as_one() -> None:
    wanted = devices.BoxConfig((devices.GpuEntry("h200"), devices.GpuEntry("t4")))
    made = box.Box(devices.build(wanted, boxes.CATALOG, node="n"), seed=1, hostname="n")
    metrics = {"memory": {"Func": "constant", "Min": 60e9, "Unit": "absolute"}}
    document = {"Name": "w", "Profile": [{"Load": 10, "Metrics": metrics}], "Devices": ["nvidia0", "nvidia1"]}
    read, ended = documents.read(document), list[tuple[int, str]]()
    made.admit(read.profile, read.devices, ended=lambda code, message: ended.append((code, message)))
    made.step(1.0, clock=0.0)
    assert ended == [(1, "Limit memory reached, terminated")]
    assert not made.workloads()


def test_a_card_in_mig_mode_has_no_utilisation_of_its_own_even_without_instances() -> None:
    [card] = devices.build(devices.BoxConfig((devices.GpuEntry("h200"),)), models.load(), node="n")
    made = box.Box([msgspec.structs.replace(card, mig_enabled=True)], seed=1, hostname="n")
    made.step(1.0, clock=1.0)
    text = render.Renderer(made.machine, identity.load("dcgm")).page()

    assert b"DCGM_FI_DEV_GPU_UTIL{" not in text
    assert b"DCGM_FI_DEV_POWER_USAGE{" in text
