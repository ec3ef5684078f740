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
    const least = Math.abs(high) * 0.02 || 1; // a curve that hardly moves is flat, in the middle
    if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
    const path = line(values, 120, 30, low, high, 2);
    this.stroke.setAttribute("d", path);
    this.area.setAttribute("d", `${path}L118 30L2 30Z`);
  }
}

// The next round number: 1, 2, 2.5, 4 or 5 times a power of ten.
function nice(value) {
  const base = 10 ** Math.floor(Math.log10(value));
  return base * [1, 2, 2.5, 4, 5, 10].find((step) => step * base >= value * 0.9999);
}

const MOST = 240;
const LEAST = 40;
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
    const low = this.low;
    const top = low + 4 * nice(((typeof this.high === "string" ? readings[this.high] : this.high) * this.scale - low || 1) / 4);
    // A new viewer has few points: the curve fills more of the width while it grows.
    const span = Math.min(MOST, Math.max(LEAST, rows.length));
    const seconds = rows.length > 1 ? ((rows.at(-1)[0] - rows[0][0]) / (rows.length - 1)) * (span - 1) : 0;
    this.#grid(low, top, seconds);
    this.#limits(readings, low, top);
    const told = [];
    this.series.forEach(({ name, label }, number) => {
      const column = names.indexOf(name);
      const values = rows.map((row) => (row[column] === null ? null : Math.min(top, Math.max(low, row[column] * this.scale))));
      this.paths[number].setAttribute("d", this.#path([...Array(span - values.length).fill(null), ...values], low, top));
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
      path += `${pen ? "L" : "M"}${(LEFT + (at / (values.length - 1)) * (WIDTH - LEFT - 8)).toFixed(1)} ${this.#y(value, low, top).toFixed(1)}`;
      pen = true;
    });
    return path;
  }

  #grid(low, top, seconds) {
    const shown = seconds >= 90 ? `${Math.round(seconds / 60)} min ago` : seconds ? `${Math.round(seconds / 5) * 5} s ago` : "";
    const key = `${low} ${top} ${shown}`;
    if (this.drawn === key) return;
    this.drawn = key;
    const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => low + share * (top - low));
    this.grid.replaceChildren(
      ...steps.flatMap((value) => {
        const y = this.#y(value, low, top);
        return [s("line", { x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }), s("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, this.#round(value))];
      }),
      s("text", { x: LEFT, y: HEIGHT - 4 }, shown),
      s("text", { x: WIDTH - 8, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
    );
  }

  #limits(readings, low, top) {
    this.marks.replaceChildren(
      ...this.limits.flatMap(({ name, label }) => {
        const value = readings[name] * this.scale;
        if (!Number.isFinite(value) || value > top || value < low) return [];
        const y = this.#y(value, low, top);
        return [s("line", { x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }), s("text", { x: LEFT + 6, y: y + (y < 24 ? 14 : -5) }, `${label} ${this.#round(value)} ${this.unit}`)];
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
