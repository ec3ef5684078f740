// Curves as SVG: small ones without axes, and large ones with a scale, limits and a legend.

import { h, s, say } from "./dom.js";

function line(values, width, height, low, high, margin) {
  const span = high - low || 1;
  const step = (width - 2 * margin) / Math.max(1, values.length - 1);
  let path = "";
  let pen = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      pen = false;
      return;
    }
    const x = (margin + at * step).toFixed(1);
    const y = (height - margin - ((value - low) / span) * (height - 2 * margin)).toFixed(1);
    path += `${pen ? "L" : "M"}${x} ${y}`;
    pen = true;
  });
  return path;
}

export class Sparkline {
  constructor() {
    this.stroke = s("path", { class: "stroke" });
    this.area = s("path", { class: "area" });
    this.element = s("svg", { class: "spark", viewBox: "0 0 120 30", preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.stroke);
  }

  set(values) {
    if (values.length < 2) return;
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (high - low < high * 0.02) low -= high * 0.02 || 1;
    const path = line(values, 120, 30, low, high, 2);
    this.stroke.setAttribute("d", path);
    this.area.setAttribute("d", `${path}L118 30L2 30Z`);
  }
}

const WIDTH = 520;
const HEIGHT = 170;
const LEFT = 44;
const BOTTOM = 20;

export class Chart {
  // `series` are names of readings with labels; `high` is the top of the scale, a number or a reading's name.
  constructor({ title, unit, series, low = 0, high, limits = [], scale = 1 }) {
    Object.assign(this, { title, unit, series, low, high, limits, scale });
    this.paths = series.map((_, number) => s("path", { class: `curve c${number}` }));
    this.grid = s("g", { class: "grid" });
    this.marks = s("g", { class: "limits" });
    this.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" }, this.grid, this.marks, this.paths);
    this.values = series.map(() => h("b", {}, "–"));
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", {}, title),
        h("span", { class: "legend" }, series.map(({ label }, number) => h("span", {}, h("i", { class: `k${number}` }), `${label} `, this.values[number])))),
      this.svg);
  }

  set(names, rows, readings) {
    const top = (typeof this.high === "string" ? readings[this.high] : this.high) * this.scale || 1;
    const low = this.low;
    this.#grid(low, top);
    this.#limits(readings, low, top);
    const told = [];
    this.series.forEach(({ name, label }, number) => {
      const column = names.indexOf(name);
      const values = rows.map((row) => (row[column] === null ? null : Math.min(top, Math.max(low, row[column] * this.scale))));
      const padded = [...Array(Math.max(0, 240 - values.length)).fill(null), ...values];
      this.paths[number].setAttribute("d", this.#path(padded, low, top));
      const last = rows.at(-1)?.[column];
      const text = last === null || last === undefined ? "–" : `${this.#round(last * this.scale)} ${this.unit}`;
      say(this.values[number], text);
      told.push(`${label} ${text}`);
    });
    this.svg.setAttribute("aria-label", `${this.title}: ${told.join(", ")}`);
  }

  #round(value) {
    return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
  }

  #y(value, low, top) {
    return HEIGHT - BOTTOM - ((value - low) / (top - low)) * (HEIGHT - BOTTOM - 8);
  }

  #path(values, low, top) {
    let path = "";
    let pen = false;
    values.forEach((value, at) => {
      if (value === null) {
        pen = false;
        return;
      }
      path += `${pen ? "L" : "M"}${(LEFT + (at / 239) * (WIDTH - LEFT - 8)).toFixed(1)} ${this.#y(value, low, top).toFixed(1)}`;
      pen = true;
    });
    return path;
  }

  #grid(low, top) {
    const key = `${low} ${top}`;
    if (this.drawn === key) return;
    this.drawn = key;
    const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => low + share * (top - low));
    this.grid.replaceChildren(
      ...steps.flatMap((value) => {
        const y = this.#y(value, low, top);
        const shown = top >= 10_000 ? `${(value / 1000).toFixed(0)}k` : this.#round(value);
        return [s("line", { x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }), s("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, shown)];
      }),
      s("text", { x: LEFT, y: HEIGHT - 4 }, "2 min ago"),
      s("text", { x: WIDTH - 8, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
    );
  }

  #limits(readings, low, top) {
    this.marks.replaceChildren(
      ...this.limits.flatMap(({ name, label }) => {
        const value = readings[name] * this.scale;
        if (!Number.isFinite(value) || value > top || value < low) return [];
        const y = this.#y(value, low, top);
        return [s("line", { x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }), s("text", { x: WIDTH - 12, y: y + (y < 24 ? 14 : -5), "text-anchor": "end" }, `${label} ${this.#round(value)} ${this.unit}`)];
      }),
    );
  }
}

export function bar(label) {
  const inner = h("i");
  const element = h("span", { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, inner);
  return {
    element,
    set(share, kind = "") {
      const value = Math.max(0, Math.min(100, share));
      inner.style.setProperty("width", `${value}%`);
      element.setAttribute("aria-valuenow", String(Math.round(value)));
      if (element.dataset.kind !== kind) element.dataset.kind = kind;
    },
  };
}
