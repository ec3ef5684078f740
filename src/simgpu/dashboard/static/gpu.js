// One GPU: curves of its readings, who uses it, counters and errors.

import { h, keep, say } from "./dom.js";
import { watch } from "./stream.js";
import { Chart } from "./charts.js";
import * as format from "./format.js";

const CURVES = [
  { title: "Utilisation", unit: "%", series: [{ name: "utilization", label: "GPU" }], high: 100 },
  { title: "Power", unit: "W", series: [{ name: "power_w", label: "draw" }], high: "power_limit_w", limits: [{ name: "power_limit_w", label: "limit" }] },
  { title: "Temperature", unit: "°C", series: [{ name: "temperature_c", label: "GPU" }, { name: "memory_temperature_c", label: "memory" }], low: 20, high: "temperature_top", limits: [{ name: "temperature_slowdown_c", label: "slowdown" }] },
  { title: "Memory", unit: "GiB", scale: 1 / 1024, series: [{ name: "memory_used_mib", label: "used" }], high: "memory_total_mib" },
  { title: "Clocks", unit: "MHz", series: [{ name: "sm_clock_mhz", label: "SM" }, { name: "memory_clock_mhz", label: "memory" }], high: "clock_top" },
  { title: "Engines", unit: "%", scale: 100, series: [{ name: "tensor_active", label: "tensor" }, { name: "dram_active", label: "DRAM" }], high: 1 },
];
const NAMES = {
  energy_j: ["Energy", (value) => format.text(format.energy(value))], pcie_bytes: ["PCIe traffic", (value) => format.text(format.bytes(value))],
  link_bytes: ["Link traffic", (value) => format.text(format.bytes(value))], power_throttled_s: ["Throttled by power", (value) => `${value.toFixed(1)} s`],
  heat_throttled_s: ["Throttled by heat", (value) => `${value.toFixed(1)} s`], xid: ["Last XID", (value) => (value ? String(value) : "none")], hangs: ["Hangs", String],
  corrected_memory_errors: ["Corrected memory errors", String], uncorrected_memory_errors: ["Uncorrected memory errors", String],
};

export class GpuView {
  constructor(main, node, index) {
    this.rows = [];
    this.names = [];
    this.charts = CURVES.map((curve) => new Chart(curve));
    this.facts = h("p", { class: "soft" }, " ");
    this.state = h("span", { class: "state big" });
    this.lists = { owners: h("ul", { class: "plain" }), counters: h("dl"), errors: h("dl"), identity: h("dl"), instances: h("dl") };
    const panel = (title, list) => h("section", { class: "panel" }, h("h2", {}, title), list);
    this.instancePanel = panel("Instances", this.lists.instances);
    const link = `#/nodes/${encodeURIComponent(node)}`;
    main.append(
      h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/" }, "Fleet"), " / ", h("a", { href: "#/nodes" }, "Nodes"), " / ", h("a", { href: link }, node)),
      h("div", { class: "headline near" }, h("h1", {}, `GPU ${index}`), this.state), this.facts,
      h("div", { class: "charts" }, this.charts.map((chart) => chart.element)),
      h("div", { class: "panels four" }, panel("Used by", this.lists.owners), panel("Counters", this.lists.counters), panel("Errors", this.lists.errors), panel("Card", this.lists.identity), this.instancePanel));
    watch({ view: "gpu", node, index }, {
      curves: ({ names, rows }) => Object.assign(this, { names, rows: rows.slice(0, -1) }),
      gpu: (data) => this.set(data),
      gone: () => say(this.facts, "There is no such GPU, or not any more."),
    });
  }

  close() {}

  set(gpu) {
    const { summary, readings } = gpu;
    const known = { ...readings, temperature_top: Math.max(readings.temperature_slowdown_c ?? 0, 100), clock_top: Math.max(readings.sm_clock_max_mhz ?? 0, readings.memory_clock_max_mhz ?? 0) };
    this.rows = [...this.rows, this.names.map((name) => (name === "time" ? gpu.time : (readings[name] ?? null)))].slice(-240);
    this.charts.forEach((chart) => chart.set(this.names, this.rows, known));
    const reasons = gpu.reasons.filter((reason) => reason !== "idle");
    say(this.facts, [summary.model, gpu.architecture, summary.pool && `pool ${summary.pool}`, summary.problem, reasons.length && `clock lowered by ${reasons.join(", ")}`].filter(Boolean).join(" · "));
    say(this.state, summary.health);
    this.state.dataset.state = summary.health;
    keep(this.lists.owners, summary.owners.length ? summary.owners : [{ pod: "nobody", namespace: "", container: "" }], (owner) => JSON.stringify(owner), (owner) => ownerRow(owner), () => {});
    list(this.lists.counters, named(gpu.counters));
    list(this.lists.errors, named(gpu.errors));
    list(this.lists.identity, [["Id", summary.id], ["PCI address", gpu.pci_bus_id], ["Serial", gpu.serial], ["Device file", gpu.file], ["NUMA node", summary.numa], ["Links", gpu.links.length ? `to ${gpu.links.length} GPUs, ${gpu.links[0].ports} ports each` : "none"]]);
    list(this.lists.instances, gpu.instances.map((item) => [`${item.number} ${item.profile}`, summary.health === "lost" ? format.NONE : `${format.percent(item.utilization)}, ${format.text(format.memory(item.memory_used_mib))}`]));
    this.instancePanel.hidden = !gpu.instances.length;
  }
}

const named = (values) => Object.entries(values).map(([name, value]) => [NAMES[name]?.[0] ?? name, NAMES[name]?.[1](value) ?? value]);

function list(element, pairs) {
  keep(element, pairs, ([name]) => name, ([name]) => {
    const value = h("dd");
    const row = h("div", {}, h("dt", {}, name), value);
    row.value = value;
    return row;
  }, (row, [, value]) => say(row.value, value));
}

function ownerRow({ namespace, pod, container, share, instance }) {
  const more = [container, share < 1 && `${Math.round(share * 100)} % of its memory`, instance !== null && instance !== undefined && `instance ${instance}`].filter(Boolean);
  return h("li", {}, h("b", {}, namespace ? `${namespace}/${pod}` : pod), more.length ? h("span", { class: "soft" }, ` ${more.join(", ")}`) : null);
}
