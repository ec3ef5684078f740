// The canvas of all GPUs. Small cells are written as pixels of an image, large ones are drawn with their values.

import * as colors from "./colors.js";
import { Arrangement, NAMED } from "./arrange.js";

const DETAIL = 15; // device-independent pixels of a cell, from which on it is drawn with rounded corners
const MOST = 84;
const NEAR = 0.15; // of the canvas, on each side: so near, nodes come into view with the next movement

const blend = (pixel, paper, share) => {
  const mix = (shift) => (((pixel >> shift) & 255) * share + ((paper >> shift) & 255) * (1 - share)) & 255;
  return ((255 << 24) | (mix(16) << 16) | (mix(8) << 8) | mix(0)) >>> 0;
};

const sameArrays = (one, other) => one.length === other.length && one.every((item, at) => item === other[at]);

export class FleetCanvas {
  constructor(element, callbacks) {
    this.element = element;
    this.context = element.getContext("2d", { alpha: false });
    this.callbacks = callbacks;
    this.layout = null;
    this.cells = new Uint8Array(0);
    this.faults = new Uint8Array(0);
    this.show = "utilization";
    this.matches = null;
    this.cursor = -1;
    this.hovered = -1;
    this.zoom = 1;
    this.left = 0;
    this.top = 0;
    this.pictured = false;
    this.pointers = new Map();
    this.#listen();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(element);
  }

  close() {
    this.observer.disconnect();
  }

  // Data.

  // A new snapshot: where the layout is the same, so is the part of it that is in view. Returns whether it is.
  setCells(show, cells, faults, layout) {
    const same = this.layout && sameArrays(layout.names, this.layout.names) && sameArrays(layout.counts, this.layout.counts);
    Object.assign(this, { show, cells, faults, layout });
    if (same && this.plan) this.plan.layout = layout;
    else this.resize();
    this.recolor();
    return Boolean(same);
  }

  recolor() {
    this.table = this.show === "owner" ? null : colors.table(this.show);
    const style = getComputedStyle(document.documentElement);
    const [paper, block, ink, soft, accent, bad] = ["--canvas", "--block", "--ink", "--soft", "--accent", "--bad"].map((name) =>
      style.getPropertyValue(name).trim(),
    );
    this.style = { paper, block, ink, soft, accent, bad, paperPixel: this.#pixel(paper), blockPixel: this.#pixel(block), badPixel: this.#pixel(bad) };
    this.draw();
  }

  #pixel(hex) {
    const value = parseInt(hex.slice(1), 16);
    return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
  }

  setMatches(matches) {
    this.matches = matches;
    this.draw();
  }

  color(place) {
    const value = this.cells[place];
    return this.table ? this.table[value] : colors.owner(value);
  }

  // Size and view.

  resize() {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!this.layout || !width || !height) return;
    const kept = this.plan?.layout === this.layout && this.zoom > 1 ? { place: this.#middlePlace(), pitch: (this.plan.pitch * this.zoom) / this.ratio } : null;
    this.element.width = Math.round(width * ratio);
    this.element.height = Math.round(height * ratio);
    this.ratio = ratio;
    this.plan = new Arrangement(this.layout, width, height, ratio);
    this.image = null;
    if (kept) this.#show(kept.place, kept.pitch * ratio);
    else this.fit();
  }

  // The first GPU of the node nearest to the middle.
  #middlePlace() {
    const { width, height } = this.element;
    const pitch = this.plan.pitch * this.zoom;
    let [best, least] = [0, Infinity];
    this.#eachVisible(pitch, (node, x, y, across) => {
      const far = Math.hypot(x + (across * pitch) / 2 - width / 2, y + pitch - height / 2);
      if (far < least) [best, least] = [node, far];
    });
    return this.plan.first[best];
  }

  // Zoom to a distance between cells, with a GPU in the middle.
  #show(place, pitch) {
    const [x, y] = this.plan.middle(place);
    this.zoom = Math.max(1, Math.round(pitch) / this.plan.pitch);
    this.left = x - this.element.width / this.zoom / 2;
    this.top = y - this.element.height / this.zoom / 2;
    this.#settle();
  }

  fit() {
    if (!this.plan) return;
    this.zoom = 1;
    this.left = this.top = 0;
    this.#settle();
  }

  // Zoom so that cells have whole pixels, and keep the point where it is.
  zoomAt(factor, x = this.element.width / 2, y = this.element.height / 2) {
    if (!this.plan) return;
    const before = this.zoom;
    const wanted = this.plan.pitch * before * factor;
    let pitch = Math.round(wanted);
    if (pitch === Math.round(this.plan.pitch * before)) pitch += factor > 1 ? 1 : -1;
    pitch = Math.min(Math.max(this.plan.pitch, MOST * this.ratio), Math.max(this.plan.pitch, pitch));
    this.zoom = pitch / this.plan.pitch;
    this.left += x / before - x / this.zoom;
    this.top += y / before - y / this.zoom;
    this.#settle();
  }

  pan(x, y) {
    this.left -= x / this.zoom;
    this.top -= y / this.zoom;
    this.#settle();
  }

  #settle() {
    const { width, height } = this.element;
    const most = (size, shown) => Math.max(0, size - shown / this.zoom);
    this.left = Math.min(most(this.plan.width, width), Math.max(0, this.left));
    this.top = Math.min(most(this.plan.height, height), Math.max(0, this.top));
    this.element.classList.toggle("zoomed", this.zoom > 1 || this.plan.height > height + 1);
    this.draw();
    this.callbacks.moved();
  }

  // Nodes in view, or nearly so.
  visibleNodes() {
    const found = [];
    if (this.plan) this.#eachVisible(this.plan.pitch * this.zoom, (node) => found.push(node), NEAR);
    return found;
  }

  // Keep a cell in sight.
  reveal(place) {
    const [x, y] = this.plan.middle(place);
    const { width, height } = this.element;
    const margin = this.plan.pitch * 2;
    if (x < this.left + margin || x > this.left + width / this.zoom - margin) this.left = x - width / this.zoom / 2;
    if (y < this.top + margin || y > this.top + height / this.zoom - margin) this.top = y - height / this.zoom / 2;
    this.#settle();
  }

  // Drawing, at most once for each frame of the screen.

  draw() {
    if (this.due || !this.plan) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.#paint();
      if (!this.pictured && this.cells.length) {
        this.pictured = true;
        performance.mark("first picture");
      }
    });
  }

  #paint() {
    const pitch = Math.round(this.plan.pitch * this.zoom);
    this.tall = Math.round(this.plan.tall * this.zoom);
    if (pitch < DETAIL * this.ratio) this.#paintPixels(pitch);
    else this.#paintShapes(pitch);
    this.#paintTitles();
    this.#paintMarks(pitch);
  }

  // Call for each node that may be in view, with the place of its first cell.
  #eachVisible(pitch, paint, near = 0) {
    const { plan, left, top, zoom } = this;
    const { width, height } = this.element;
    const [beside, above] = [width * near, (height / zoom) * near];
    const bottom = top + height / zoom;
    for (const row of plan.rows) {
      if (row.y + row.height < top - above || row.y > bottom + above) continue;
      const y = Math.round((row.y - top) * zoom);
      for (const node of row.nodes) {
        const x = Math.round((plan.x[node] - left) * zoom);
        const across = plan.columns(node);
        if (x <= width + beside && x + across * pitch >= -beside) paint(node, x, y, across);
      }
    }
  }

  #paintPixels(pitch) {
    const { width, height } = this.element;
    if (!this.image) {
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const { pixels, plan, layout, matches, style } = this;
    pixels.fill(style.paperPixel);
    const gap = pitch > 2 ? Math.max(1, Math.round(pitch / 7)) : 0;
    const [size, tall] = [pitch - gap, this.tall - gap];
    const { faults } = this;
    this.#eachVisible(pitch, (node, left, top, across) => {
      const first = plan.first[node];
      const count = layout.counts[node];
      for (let index = 0; index < count; index++) {
        const place = first + index;
        const x = left + (index % across) * pitch;
        const y = top + ((index / across) | 0) * this.tall;
        let pixel = faults[place] ? style.badPixel : this.color(place);
        if (matches && !matches[place]) pixel = blend(pixel, style.paperPixel, 0.16);
        const [from, to] = [x < 0 ? 0 : x, x + size > width ? width : x + size];
        const last = y + tall > height ? height : y + tall;
        // Cells are a few pixels wide: a loop is faster than a call for each line.
        for (let line = y < 0 ? 0 : y; line < last; line++) for (let at = line * width + from, end = line * width + to; at < end; at++) pixels[at] = pixel;
      }
    });
    this.context.putImageData(this.image, 0, 0);
  }

  #paintShapes(pitch) {
    const { context, plan, layout, matches, style, ratio } = this;
    const { width, height } = this.element;
    context.fillStyle = style.paper;
    context.fillRect(0, 0, width, height);
    const gap = Math.max(2, Math.round(pitch * 0.12));
    const [size, tall] = [pitch - gap, this.tall - gap];
    const rounded = Math.min(9 * ratio, size / 5);
    const written = size / ratio >= 20 && this.show !== "owner" && this.show !== "health";
    context.font = `500 ${Math.round(Math.min(19, size / ratio / 2.6) * ratio)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const inset = Math.round(Math.min(6 * ratio, (plan.pad * this.zoom) / 4));
    this.#eachVisible(pitch, (node, left, top, across) => {
      const down = Math.ceil(layout.counts[node] / across);
      context.fillStyle = style.block;
      context.beginPath();
      context.roundRect(left - inset, top - inset, across * pitch + 2 * inset - gap, down * this.tall + 2 * inset - gap, rounded + inset / 2);
      context.fill();
      for (let index = 0; index < layout.counts[node]; index++) {
        const place = plan.first[node] + index;
        const x = left + (index % across) * pitch;
        const y = top + Math.floor(index / across) * this.tall;
        if (x > width || y > height || x + size < 0 || y + size < 0) continue;
        const pixel = this.color(place);
        context.globalAlpha = matches && !matches[place] ? 0.16 : 1;
        context.fillStyle = colors.css(pixel);
        context.beginPath();
        context.roundRect(x, y, size, tall, rounded);
        context.fill();
        if (this.faults[place]) this.#paintFault(x, y, size, tall, rounded);
        else if (written && this.cells[place]) {
          context.fillStyle = colors.light(pixel) ? "rgb(0 0 0 / .72)" : "rgb(255 255 255 / .86)";
          context.fillText(String(this.cells[place]), x + size / 2, y + tall / 2 + 0.5 * ratio);
        }
      }
      context.globalAlpha = 1;
      if (pitch >= NAMED * ratio && plan.pad * this.zoom >= 12 * ratio) this.#paintName(layout.names[node], left, top - inset, across * pitch - gap);
    });
  }

  #paintName(name, left, top, wide) {
    const { context, ratio, style } = this;
    context.save();
    context.font = `400 ${11 * ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.fillStyle = style.soft;
    context.beginPath();
    context.rect(left, top - 16 * ratio, wide, 16 * ratio);
    context.clip();
    context.textBaseline = "alphabetic";
    context.fillText(name, left, top - 4 * ratio);
    context.restore();
  }

  #paintFault(x, y, size, tall, rounded) {
    const { context, style, ratio } = this;
    context.fillStyle = style.bad;
    context.beginPath();
    context.roundRect(x, y, size, tall, rounded);
    context.fill();
    context.strokeStyle = "#fff";
    context.lineWidth = 2 * ratio;
    context.beginPath();
    const [across, down, arm] = [x + size / 2, y + tall / 2, size * 0.16];
    context.moveTo(across - arm, down - arm);
    context.lineTo(across + arm, down + arm);
    context.moveTo(across + arm, down - arm);
    context.lineTo(across - arm, down + arm);
    context.stroke();
  }

  #paintTitles() {
    const { context, style, ratio, plan } = this;
    if (!plan.titled) return;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    for (const { pool, y, nodes, gpus } of plan.titles) {
      const at = (y - this.top) * this.zoom + 16 * ratio;
      if (at < -20 || at > this.element.height + 20) continue;
      const x = 12 * ratio;
      context.font = `600 ${13 * ratio}px system-ui, sans-serif`;
      context.fillStyle = style.ink;
      const name = pool || "no pool";
      context.fillText(name, x, at);
      const wide = context.measureText(name).width;
      context.font = `400 ${12 * ratio}px system-ui, sans-serif`;
      context.fillStyle = style.soft;
      context.fillText(`${nodes.toLocaleString("en")} nodes · ${gpus.toLocaleString("en")} GPUs`, x + wide + 10 * ratio, at);
    }
  }

  #paintMarks(pitch) {
    const { context, style, ratio } = this;
    for (const [place, color, wide] of [
      [this.hovered, style.ink, 1.5],
      [this.cursor, style.accent, 2.5],
    ]) {
      if (place < 0 || place >= this.cells.length) continue;
      const [x, y] = this.plan.middle(place);
      const [half, tall] = [pitch / 2 + ratio, this.tall / 2 + ratio];
      context.strokeStyle = color;
      context.lineWidth = wide * ratio;
      context.beginPath();
      context.roundRect((x - this.left) * this.zoom - half - 0.5, (y - this.top) * this.zoom - tall - 0.5, 2 * half, 2 * tall, Math.min(6 * ratio, half / 2));
      context.stroke();
    }
  }

  // Input.

  #point(event) {
    const box = this.element.getBoundingClientRect();
    return [(event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio];
  }

  #placeAt([x, y]) {
    return this.plan ? this.plan.at(this.left + x / this.zoom, this.top + y / this.zoom) : -1;
  }

  #listen() {
    const on = (name, callback, options) => this.element.addEventListener(name, callback, options);
    on("wheel", (event) => {
      event.preventDefault();
      this.zoomAt(Math.exp(-event.deltaY / 300), ...this.#point(event));
    }, { passive: false });
    on("pointerdown", (event) => {
      this.pointers.set(event.pointerId, this.#point(event));
      this.moved = 0;
      this.element.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => this.#move(event));
    on("pointerup", (event) => {
      if (this.pointers.delete(event.pointerId) && this.moved < 6 * this.ratio && !this.pointers.size) {
        const place = this.#placeAt(this.#point(event));
        if (place >= 0) this.callbacks.open(place);
      }
    });
    on("pointercancel", (event) => this.pointers.delete(event.pointerId));
    on("pointerleave", () => this.#hover(-1, null));
    on("keydown", (event) => this.#key(event));
    on("blur", () => {
      this.cursor = -1;
      this.draw();
    });
  }

  #move(event) {
    const point = this.#point(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.#hover(this.#placeAt(point), event);
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.pointers.set(event.pointerId, point);
    this.moved += Math.hypot(point[0] - before[0], point[1] - before[1]);
    if (other) {
      const reach = (from) => Math.hypot(from[0] - other[0], from[1] - other[1]);
      this.pinch = (this.pinch ?? 1) * (reach(point) / Math.max(1, reach(before)));
      if (Math.abs(Math.log(this.pinch)) > 0.08) {
        this.zoomAt(this.pinch, (point[0] + other[0]) / 2, (point[1] + other[1]) / 2);
        this.pinch = 1;
      }
    } else this.pan(point[0] - before[0], point[1] - before[1]);
    this.#hover(-1, null);
  }

  #hover(place, event) {
    if (place !== this.hovered) {
      this.hovered = place;
      this.draw();
    }
    this.callbacks.hover(place, event);
  }

  #key(event) {
    if (!this.plan || !this.cells.length) return;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in steps) this.#step(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoomAt(1.5);
    else if (event.key === "-") this.zoomAt(1 / 1.5);
    else if (event.key === "0") this.fit();
    else if (event.key === "Home") this.#choose(this.plan.firstPlace);
    else if (event.key === "End") this.#choose(this.plan.lastPlace);
    else if (event.key === "Enter" && this.cursor >= 0) this.callbacks.open(this.cursor);
    else return;
    event.preventDefault();
  }

  #step(across, down) {
    if (this.cursor < 0) return this.#choose(this.plan.firstPlace);
    if (across) return this.#choose(this.plan.beside(this.cursor, across));
    const [x, y] = this.plan.middle(this.cursor);
    const step = this.plan.pitch / 2;
    for (let far = step; far < this.plan.height; far += step) {
      const place = this.plan.at(x, y + down * far);
      if (place >= 0 && place !== this.cursor) return this.#choose(place);
    }
  }

  #choose(place) {
    this.cursor = place;
    this.reveal(place);
    this.callbacks.announce(place);
  }
}
