// The fleet: totals with sparklines, and the canvas of all GPUs.

import { h, say } from "./dom.js";
import { ask, places, unpack, watch } from "./stream.js";
import { FleetCanvas } from "./canvas.js";
import { VisibleParts, mask } from "./parts.js";
import { Sparkline } from "./charts.js";
import * as colors from "./colors.js";
import * as format from "./format.js";

const TILES = [
  { key: "busy", label: "GPUs busy", value: (t) => [format.count(t.busy), `of ${format.count(t.gpus)}`], of: (t) => t.busy },
  { key: "allocated", label: "Allocated", value: (t) => [format.count(t.allocated), `${Math.round((100 * t.allocated) / Math.max(1, t.gpus))} %`], of: (t) => t.allocated },
  { key: "utilization", label: "Utilisation", value: (t) => [t.utilization.toFixed(1), "%"], of: (t) => t.utilization },
  { key: "power", label: "Power", value: (t) => format.power(t.power_w), of: (t) => t.power_w },
  { key: "energy", label: "Energy", value: (t) => format.energy(t.energy_j), of: (t) => t.energy_j },
  { key: "memory", label: "Memory used", value: (t) => format.memory(t.memory_used_mib), of: (t) => t.memory_used_mib },
  { key: "throttled", label: "Throttled", value: (t) => [format.count(t.throttled), ""], of: (t) => t.throttled },
  { key: "unhealthy", label: "Unhealthy", value: (t) => [format.count(t.unhealthy), ""], of: (t) => t.unhealthy, bad: (t) => t.unhealthy > 0 },
];
const KEPT = 240;
const TIP_MILLISECONDS = 900; // between reads of the GPU under the pointer
const chosen = { show: "utilization", pool: "", model: "" };

export class FleetView {
  constructor(main) {
    this.curves = [];
    this.tipped = -1;
    this.tiles = TILES.map((tile) => {
      const [value, unit, spark] = [h("b", {}, "–"), h("small"), new Sparkline()];
      return { ...tile, valueAt: value, unitAt: unit, spark, element: h("div", { class: "tile" }, h("span", { class: "label" }, tile.label), h("span", { class: "value" }, value, " ", unit), spark.element) };
    });
    this.element = h("canvas", { id: "cells", tabindex: 0, role: "application", "aria-label": "All GPUs, a cell each", "aria-describedby": "cells-help" });
    this.announcer = h("p", { class: "hidden", "aria-live": "polite" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.found = h("p", { class: "found", role: "status" });
    this.legend = h("div", { class: "scale" });
    this.modes = Object.entries(colors.SCALES).map(([name, { label }]) =>
      h("label", { class: "mode" }, h("input", { type: "radio", name: "show", value: name, checked: name === chosen.show, onchange: () => this.choose({ show: name }) }), h("span", {}, label)));
    this.pool = h("select", { "aria-label": "Pool", onchange: (event) => this.choose({ pool: event.target.value }) });
    this.model = h("select", { "aria-label": "Model", onchange: (event) => this.choose({ model: event.target.value }) });
    const button = (label, text, action) => h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick: action }, text);
    main.append(
      h("h1", { class: "hidden" }, "Fleet"),
      h("section", { class: "tiles", tabindex: 0, "aria-label": "Totals" }, this.tiles.map((tile) => tile.element)),
      h("div", { class: "tools" },
        h("fieldset", { class: "modes" }, h("legend", { class: "hidden" }, "Colour cells by"), this.modes),
        this.legend,
        this.pool, this.model,
        h("span", { class: "zoom" },
          button("Zoom out", "−", () => this.canvas.zoomAt(1 / 1.6)), button("Zoom in", "+", () => this.canvas.zoomAt(1.6)), button("Show everything", "⤢", () => this.canvas.fit()))),
      h("section", { class: "canvas", "aria-label": "GPUs" }, this.element, this.found, this.tip,
        h("p", { id: "cells-help", class: "hidden" }, "Arrow keys move from GPU to GPU, Enter opens one, plus and minus zoom, 0 shows everything. The same data is in the tables of nodes and pods."), this.announcer));
    this.canvas = new FleetCanvas(this.element, {
      hover: (place, event) => this.hover(place, event),
      open: (place) => this.open(place),
      announce: (place) => this.announce(place),
      moved: () => this.parts.moved(),
    });
    this.parts = new VisibleParts(() => this.canvas.visibleNodes(), (blocks) => this.follow({ blocks: mask(blocks), layout: this.layout.tag }));
    this.choose({});
  }

  close() {
    this.canvas.close();
    this.parts.close();
  }

  // Colour by another column, or show another pool or model. Of another column all cells are needed once.
  choose(change) {
    Object.assign(chosen, change);
    if ("pool" in change || "model" in change) this.parts.reset();
    this.follow({ blocks: mask(this.parts.asked) });
    this.canvas.setMatches(null);
    this.findAgain();
  }

  follow(part) {
    watch({ view: "fleet", ...chosen, ...part }, {
      layout: (data) => this.setLayout(data), cells: (data) => this.setCells(data), change: (data) => this.change(data),
      block: (data) => this.setBlock(data), block_change: (data) => this.changeBlock(data),
    });
  }

  // What to show, from the stream.

  setLayout(layout) {
    this.layout = layout;
    this.parts.setLayout(layout);
    this.options(this.pool, "All pools", layout.all_pools, chosen.pool);
    this.options(this.model, "All models", layout.all_models, chosen.model);
  }

  options(select, all, counts, value) {
    const names = Object.keys(counts).filter((name) => name);
    select.hidden = names.length < 2 && !value;
    select.replaceChildren(h("option", { value: "" }, all), ...names.map((name) => h("option", { value: name, selected: name === value }, `${name} (${format.count(counts[name])})`)));
  }

  // A snapshot: without cells where those of some blocks follow, and without curves where they go on.
  setCells(data) {
    this.namespaces = data.namespaces;
    if (data.cells) {
      const bytes = unpack(data.cells);
      const cells = data.width === 4 ? new Uint32Array(bytes.buffer) : bytes;
      if (!this.canvas.setCells(data.show, cells, unpack(data.faults), this.layout)) this.findAgain();
    }
    if (data.curves) {
      const { names, rows } = data.curves;
      this.curves = rows.map((row) => Object.fromEntries(names.map((name, at) => [name, row[at]])));
    } else this.curves.push(data.totals);
    this.setTotals(data.totals);
    this.paintLegend();
  }

  setBlock(data) {
    for (const [cells, values] of this.columns(data, (text) => text)) this.parts.cells[data.block].forEach((place, at) => (cells[place] = values[at]));
    this.canvas.draw();
  }

  changeBlock(data) {
    const block = this.parts.cells[data.block];
    for (const [cells, values, changed] of this.columns(data, (pair) => pair[1])) places(changed[0]).forEach((inside, at) => (cells[block[inside]] = values[at]));
    this.canvas.draw();
  }

  // The columns that an event is about: cells of the canvas, new values, and the event's own text.
  columns(data, text) {
    const columns = [["cells", this.canvas.cells], ["faults", this.canvas.faults]].filter(([key]) => data[key]);
    return columns.map(([key, cells]) => {
      const bytes = unpack(text(data[key]));
      return [cells, cells.BYTES_PER_ELEMENT === 4 ? new Uint32Array(bytes.buffer) : bytes, data[key]];
    });
  }

  change(data) {
    for (const [cells, values, changed] of this.columns(data, (pair) => pair[1])) places(changed[0]).forEach((place, at) => (cells[place] = values[at]));
    this.canvas.draw();
    if (this.tipped >= 0 && Date.now() - this.described > TIP_MILLISECONDS) this.describe(this.tipped);
    this.curves.push(data.totals);
    this.setTotals(data.totals);
    if (data.namespaces && JSON.stringify(data.namespaces) !== JSON.stringify(this.namespaces)) {
      this.namespaces = data.namespaces;
      this.paintLegend();
    }
  }

  setTotals(totals) {
    this.curves = this.curves.slice(-KEPT);
    for (const tile of this.tiles) {
      const [value, unit] = tile.value(totals);
      say(tile.valueAt, value);
      say(tile.unitAt, unit);
      tile.spark.set(this.curves.map(tile.of));
      tile.element.classList.toggle("bad", Boolean(tile.bad?.(totals)));
    }
  }

  recolor() {
    this.canvas.recolor();
    this.paintLegend();
  }

  paintLegend() {
    const { show } = chosen;
    const swatch = (color, text) => h("span", {}, h("i", { vars: { background: color } }), text);
    if (show === "health") this.legend.replaceChildren(...colors.states().map((color, at) => swatch(color, colors.STATE_NAMES[at])));
    else if (show === "owner") {
      this.legend.replaceChildren(...(this.namespaces ?? []).slice(0, 7).map(([name, hash]) => swatch(colors.namespaceColor(hash), name || "workloads")));
      this.legend.prepend(swatch(colors.stops("utilization")[0], "free"));
    } else {
      const { low, high, unit } = colors.SCALES[show];
      this.legend.replaceChildren(h("span", {}, low), h("span", { class: "ramp", vars: { background: `linear-gradient(90deg, ${colors.stops(show).join(", ")})` } }), h("span", {}, `${high} ${unit}`));
    }
  }

  // GPUs under the pointer or the cursor.

  where(place) {
    const node = this.canvas.plan.node(place);
    const index = this.layout.indices ? this.layout.indices[place] : place - this.canvas.plan.first[node];
    return [this.layout.names[node], index];
  }

  open(place) {
    const [node, index] = this.where(place);
    location.hash = `#/nodes/${encodeURIComponent(node)}/gpus/${index}`;
  }

  hover(place, event) {
    clearTimeout(this.asking);
    if (place < 0 || !event) {
      this.tip.hidden = true;
      this.tipped = -1;
      return;
    }
    const box = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    this.tip.style.setProperty("left", `${Math.max(8, Math.min(x + 14, box.width - 250))}px`);
    this.tip.style.setProperty("top", `${y > box.height - 170 ? y - 160 : y + 16}px`);
    if (place === this.tipped) return;
    this.tipped = place;
    const [node, index] = this.where(place);
    this.tip.replaceChildren(h("b", {}, `${node} · GPU ${index}`));
    this.tip.hidden = false;
    this.asking = setTimeout(() => this.describe(place), 90);
  }

  async describe(place) {
    const [node, index] = this.where(place);
    this.described = Date.now();
    const { summary } = await ask(`/nodes/${encodeURIComponent(node)}/gpus/${index}`).catch(() => ({}));
    if (summary && this.tipped === place) this.tip.replaceChildren(h("b", {}, `${node} · GPU ${index}`), ...describe(summary));
  }

  async announce(place) {
    const [node, index] = this.where(place);
    say(this.announcer, `${node}, GPU ${index}`);
    const { summary } = await ask(`/nodes/${encodeURIComponent(node)}/gpus/${index}`).catch(() => ({}));
    if (summary && this.canvas.cursor === place) {
      const owner = summary.owners[0];
      const readings = [`${summary.utilization} percent`, `${Math.round(summary.power_w)} watts`, `${Math.round(summary.temperature_c)} degrees`];
      const parts = [node, `GPU ${index}`, ...(summary.health === "lost" ? [] : readings), summary.health, owner ? `${owner.namespace}/${owner.pod}` : "free"];
      say(this.announcer, parts.join(", "));
    }
  }

  // Search: everything that does not match is dimmed.

  async find(text) {
    this.text = text;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (!text) {
      this.canvas.setMatches(null);
      say(this.found, "");
      return null;
    }
    const found = await ask("/search", { q: text, pool: chosen.pool, model: chosen.model });
    if (this.turn === turn) {
      this.mark(places(found.places));
      say(this.found, found.total ? `${format.count(found.total)} GPU${found.total === 1 ? "" : "s"} match` : "nothing matches");
    }
    return found;
  }

  mark(found) {
    const matches = new Uint8Array((found.at(-1) ?? -1) + 1); // cells may come later
    for (const place of found) matches[place] = 1;
    this.canvas.setMatches(matches);
  }

  // Other cells are shown, so the places that match are others too.
  findAgain() {
    if (this.text) this.find(this.text).catch(() => {});
  }
}

function describe(gpu) {
  const row = (label, value) => h("div", {}, h("span", {}, label), h("span", {}, value));
  const shown = (text) => (gpu.health === "lost" ? format.NONE : text);
  const owner = gpu.owners[0];
  return [
    h("small", {}, gpu.model),
    row("Utilisation", shown(format.percent(gpu.utilization))),
    row("Power", shown(`${Math.round(gpu.power_w)} of ${Math.round(gpu.power_limit_w)} W`)),
    row("Temperature", shown(`${Math.round(gpu.temperature_c)} °C`)),
    row("Memory", shown(`${format.text(format.memory(gpu.memory_used_mib))} of ${format.text(format.memory(gpu.memory_total_mib))}`)),
    row("Health", gpu.problem || gpu.health),
    row("Owner", owner ? `${owner.namespace ? `${owner.namespace}/` : ""}${owner.pod}${gpu.owners.length > 1 ? ` +${gpu.owners.length - 1}` : ""}` : "free"),
  ];
}
