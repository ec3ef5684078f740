// Tables of nodes and pods, in parts.

import { h, keep, say } from "./dom.js";
import { ask, watch } from "./stream.js";
import { bar } from "./charts.js";
import * as format from "./format.js";

const PART = 50;
const NODES_MILLISECONDS = 2000; // between reads of the list of nodes, which is not streamed

export const nodeLink = (name) => `#/nodes/${encodeURIComponent(name)}`;

function pager(turn) {
  const text = h("span", { class: "soft" });
  const back = h("button", { type: "button", onclick: () => turn(-PART) }, "Previous");
  const next = h("button", { type: "button", onclick: () => turn(PART) }, "Next");
  const element = h("div", { class: "pager" }, text, back, next);
  return {
    element,
    set(total, offset, count) {
      say(text, total ? `${format.count(offset + 1)}–${format.count(offset + count)} of ${format.count(total)}` : "none");
      back.disabled = offset === 0;
      next.disabled = offset + count >= total;
    },
  };
}

// Name the cells of a row by their columns, for narrow screens, where the heads are hidden.
function labelled(row, heads) {
  let column = 0;
  for (const cell of row.cells) {
    if (cell.colSpan === 1 && column) cell.dataset.label = heads[column];
    column += cell.colSpan;
  }
  return row;
}

function table(heads, body) {
  return h("table", { class: "stack" }, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), body);
}

const NODE_HEADS = ["Node", "Pool", "GPUs", "Utilisation", "Memory", "Power", "Hottest", "Allocated", "Health"];
const POD_HEADS = ["Pod", "Namespace", "Phase", "GPUs", "Utilisation", "Memory", "Since", "Node"];

export const podTable = (body, withNode = true) => table(withNode ? POD_HEADS : POD_HEADS.slice(0, -1), body);

function metered(label) {
  const [meter, text] = [bar(label), h("span")];
  return { element: h("span", { class: "metered" }, meter.element, text), meter, text };
}

export class NodesView {
  constructor(main) {
    this.offset = 0;
    this.text = "";
    this.body = h("tbody");
    this.pager = pager((step) => this.turn(step));
    main.append(h("h1", {}, "Nodes"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Nodes" }, table(NODE_HEADS, this.body)), this.pager.element);
    watch({ view: "totals" }, { fleet: () => this.loading || Date.now() - this.loaded < NODES_MILLISECONDS || this.load() });
    this.load();
  }

  close() {
    this.closed = true;
  }

  turn(step) {
    this.offset = Math.max(0, this.offset + step);
    this.load();
  }

  find(text) {
    this.text = text;
    this.offset = 0;
    return this.load();
  }

  async load() {
    this.again = this.loading; // what is asked for has changed meanwhile
    if (this.loading || this.closed) return;
    this.loading = true;
    this.loaded = Date.now();
    const page = await ask("/nodes", { limit: PART, offset: this.offset, q: this.text }).catch(() => null);
    this.loading = false;
    if (this.again) return this.load();
    if (!page || this.closed) return;
    keep(this.body, page.items, (node) => node.name, (node) => this.row(node), (row, node) => row.update(node));
    this.pager.set(page.total, page.offset, page.items.length);
  }

  row(node) {
    const [usage, memory] = [metered(`Utilisation of ${node.name}`), metered(`Memory of ${node.name}`)];
    const [power, heat, owned, health] = [h("td", { class: "n" }), h("td", { class: "n" }), h("td", { class: "n" }), h("td")];
    const row = h("tr", {}, h("th", { scope: "row" }, h("a", { href: nodeLink(node.name) }, node.name)), h("td", { class: "soft" }, node.pool || "–"),
      h("td", {}, `${node.gpus} × ${node.models.join(", ")}`), h("td", {}, usage.element), h("td", {}, memory.element), power, heat, owned, health);
    row.update = (now) => {
      usage.meter.set(now.utilization);
      say(usage.text, format.percent(now.utilization));
      const share = (100 * now.memory_used_mib) / Math.max(1, now.memory_total_mib);
      memory.meter.set(share, "memory");
      say(memory.text, format.percent(share));
      say(power, format.text(format.power(now.power_w)));
      say(heat, `${Math.round(now.temperature_max_c)} °C`);
      say(owned, `${now.allocated} of ${now.gpus}`);
      say(health, now.unhealthy ? `${now.unhealthy} unhealthy` : "healthy");
      health.className = now.unhealthy ? "badtext" : "soft";
    };
    return labelled(row, NODE_HEADS);
  }
}

export class PodsView {
  constructor(main) {
    this.query = { q: "", phase: "", offset: 0 };
    this.body = h("tbody");
    this.pager = pager((step) => this.change({ offset: Math.max(0, this.query.offset + step) }));
    const phase = h("select", { "aria-label": "Phase", onchange: (event) => this.change({ phase: event.target.value, offset: 0 }) },
      h("option", { value: "" }, "All pods"), h("option", { value: "Pending" }, "Pending"), h("option", { value: "Running" }, "With GPUs"));
    this.none = h("p", { class: "empty", hidden: true }, "No pods.");
    main.append(h("div", { class: "headline" }, h("h1", {}, "Pods"), phase),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Pods" }, podTable(this.body)), this.none, this.pager.element);
    this.change({});
  }

  close() {}

  find(text) {
    this.change({ q: text, offset: 0 });
  }

  change(query) {
    Object.assign(this.query, query);
    watch({ view: "pods", limit: PART, ...this.query }, { pods: (page) => this.set(page) });
  }

  set(page) {
    setPods(this.body, page.items);
    this.none.hidden = page.items.length > 0;
    this.pager.set(page.total, page.offset, page.items.length);
  }
}

export function setPods(body, pods, withNode = true) {
  keep(body, pods, (pod) => `${pod.namespace}/${pod.name}/${pod.phase}`, (pod) => podRow(pod, withNode), (row, pod) => row.update(pod));
}

function podRow(pod, withNode) {
  const usage = metered(`Utilisation of ${pod.name}`);
  const [gpus, memory, since] = [h("td", { class: "n" }), h("td", { class: "n" }), h("time")];
  const waits = pod.phase === "Pending";
  const reason = h("span", { class: "reason" });
  const row = h("tr", { class: waits ? "pending" : "" }, h("th", { scope: "row" }, pod.name), h("td", { class: "soft" }, pod.namespace || "–"),
    h("td", {}, h("span", { class: waits ? "pill wait" : "pill good" }, pod.phase)), gpus,
    waits ? h("td", { colspan: 2 }, reason) : [h("td", {}, usage.element), memory], h("td", { class: "n" }, since),
    withNode && h("td", {}, pod.node ? h("a", { href: nodeLink(pod.node) }, pod.node) : h("span", { class: "soft" }, "–")));
  row.update = (now) => {
    say(gpus, now.instances ? `${now.instances} instance${now.instances === 1 ? "" : "s"}` : String(now.gpus));
    usage.meter.set(now.utilization);
    say(usage.text, format.percent(now.utilization));
    say(memory, format.text(format.memory(now.memory_used_mib)));
    say(since, format.ago(now.since));
    if (now.since && since.dateTime !== now.since) Object.assign(since, { dateTime: now.since, title: new Date(now.since).toLocaleString() });
    say(reason, [now.reason, now.message].filter(Boolean).join(": ") || "Its containers have not started yet.");
  };
  return labelled(row, POD_HEADS);
}
