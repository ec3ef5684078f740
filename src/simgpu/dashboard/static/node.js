// One node: its cards by NUMA zone, the links between them, instances, pods and events.

import { h, keep, s, say } from "./dom.js";
import { watch } from "./stream.js";
import { bar } from "./charts.js";
import { podTable, setPods } from "./tables.js";
import * as format from "./format.js";

const gpuLink = (gpu) => `#/nodes/${encodeURIComponent(gpu.node)}/gpus/${gpu.index}`;

export class NodeView {
  constructor(main, name) {
    this.facts = h("p", { class: "soft" }, " ");
    this.zones = h("div", { class: "zones" });
    this.fabric = h("section", { class: "panel", hidden: true, "aria-label": "Links" });
    this.pods = h("tbody");
    this.podPanel = h("section", { class: "panel wide", hidden: true }, h("h2", {}, "Pods"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Pods of the node" }, podTable(this.pods, false)));
    this.events = h("ul", { class: "events" });
    this.eventPanel = h("section", { class: "panel", hidden: true }, h("h2", {}, "Events"), this.events);
    main.append(h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/" }, "Fleet"), " / ", h("a", { href: "#/nodes" }, "Nodes")), h("h1", {}, name), this.facts, this.zones,
      h("div", { class: "panels" }, this.podPanel, this.fabric, this.eventPanel));
    watch({ view: "node", node: name }, { node: (data) => this.set(data), gone: () => say(this.facts, "There is no such node, or not any more.") });
  }

  close() {}

  set({ summary, gpus, instances, links, pods, events, driver, cuda }) {
    const parts = [summary.pool && `pool ${summary.pool}`, `${summary.gpus} × ${summary.models.join(", ")}`, driver && `driver ${driver}`, cuda && `CUDA ${cuda}`,
      format.text(format.power(summary.power_w)), `${Math.round(summary.utilization)} % busy`];
    say(this.facts, parts.filter(Boolean).join(" · "));
    const zones = new Map();
    for (const gpu of gpus) zones.set(gpu.numa, [...(zones.get(gpu.numa) ?? []), gpu]);
    keep(this.zones, zones, ([zone]) => zone, ([zone]) => this.zone(zone), (element, [, there]) =>
      keep(element.cards, there, (gpu) => gpu.id, (gpu) => card(gpu), (item, gpu) => item.update(gpu, instances[gpu.id] ?? [])));
    this.setLinks(gpus, links);
    setPods(this.pods, pods, false);
    this.podPanel.hidden = !pods.length;
    keep(this.events, [...events].reverse(), (event) => `${event.time}${event.reason}`, (event) => eventRow(event), () => {});
    this.eventPanel.hidden = !events.length;
  }

  zone(number) {
    const cards = h("div", { class: "cards" });
    const element = h("section", { "aria-label": `NUMA node ${number}` }, h("h2", { class: "soft" }, `NUMA ${number}`), cards);
    element.cards = cards;
    return element;
  }

  setLinks(gpus, links) {
    const key = JSON.stringify([gpus.map((gpu) => gpu.health), links]);
    if (key === this.linked) return;
    this.linked = key;
    const any = gpus.length <= 16 && gpus.some((gpu) => links[gpu.id]?.length);
    this.fabric.hidden = !any;
    if (any) this.fabric.replaceChildren(h("h2", {}, "Links"), ring(gpus, links));
  }
}

function card(gpu) {
  const [usage, power, memory] = [bar("Utilisation"), bar("Power"), bar("Memory")];
  const texts = { usage: h("b"), power: h("b"), memory: h("b"), heat: h("b") };
  const [owner, state, parts] = [h("span", { class: "owner" }), h("span", { class: "state" }), h("div", { class: "instances" })];
  const line = (label, value, meter) => h("div", { class: "line" }, h("span", {}, label), value, meter?.element);
  const element = h("a", { class: "card", href: gpuLink(gpu), "aria-label": `GPU ${gpu.index}` }, h("header", {}, h("strong", {}, `GPU ${gpu.index}`), state),
    line("Utilisation", texts.usage, usage), line("Power", texts.power, power), line("Memory", texts.memory, memory), line("Temperature", texts.heat), parts, owner);
  element.update = (now, instances) => {
    const shown = (text) => (now.health === "lost" ? format.NONE : text);
    usage.set(now.utilization);
    say(texts.usage, shown(format.percent(now.utilization)));
    power.set((100 * now.power_w) / now.power_limit_w, "power");
    say(texts.power, shown(`${Math.round(now.power_w)} W`));
    memory.set((100 * now.memory_used_mib) / now.memory_total_mib, "memory");
    say(texts.memory, shown(format.text(format.memory(now.memory_used_mib))));
    say(texts.heat, shown(`${Math.round(now.temperature_c)} °C`));
    say(state, now.health);
    state.dataset.state = now.health;
    const first = now.owners[0];
    say(owner, first ? `${first.namespace ? `${first.namespace}/` : ""}${first.pod}${now.owners.length > 1 ? ` +${now.owners.length - 1}` : ""}` : "free");
    owner.classList.toggle("soft", !first);
    parts.hidden = !instances.length;
    keep(parts, instances, (item) => item.number, (item) => instance(item), (item, value) => item.update(value, shown));
  };
  return element;
}

function instance(item) {
  const meter = bar(`Instance ${item.number}`);
  const text = h("b");
  const element = h("div", { class: "line" }, h("span", {}, item.profile ? `${item.profile} · ${item.number}` : `tile ${item.number}`), text, meter.element);
  element.update = (now, shown) => {
    meter.set(now.utilization);
    say(text, shown(format.percent(now.utilization)));
  };
  return element;
}

// GPUs on a circle, with a line for each link.
function ring(gpus, links) {
  const [middle, radius] = [150, 112];
  const at = (place) => {
    const angle = (2 * Math.PI * place) / gpus.length - Math.PI / 2;
    return [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)];
  };
  const place = new Map(gpus.map((gpu, number) => [gpu.index, number]));
  const lines = gpus.flatMap((gpu, number) => (links[gpu.id] ?? []).filter((link) => place.get(link.peer) > number).map((link) => {
    const [[x1, y1], [x2, y2]] = [at(number), at(place.get(link.peer))];
    return s("line", { x1, y1, x2, y2 });
  }));
  const dots = gpus.map((gpu, number) => {
    const [cx, cy] = at(number);
    return s("g", { class: `dot ${gpu.health}` }, s("circle", { cx, cy, r: 17 }), s("text", { x: cx, y: cy + 5, "text-anchor": "middle" }, gpu.index));
  });
  const ports = gpus.map((gpu) => links[gpu.id]?.[0]?.ports).find(Boolean);
  return h("figure", { class: "ring" }, s("svg", { viewBox: "0 0 300 300", role: "img", "aria-label": `Links between ${gpus.length} GPUs, ${ports} ports each` }, lines, dots), h("figcaption", { class: "soft" }, `every line: ${ports} ports each way`));
}

export function eventRow(event) {
  return h("li", { class: event.type === "Warning" ? "warning" : "" }, h("b", {}, event.reason), ` ${event.message} `, h("span", { class: "soft" }, `${format.ago(event.time)} ago`));
}
