// Where each node and GPU is on the canvas: pools below each other, nodes in rows, GPUs in small blocks.

const TITLE = 24;
const NAME = 16;
export const NAMED = 30; // the distance between GPUs from which on nodes are named
const LARGEST = 72;
const EDGE = 12;

const columns = (gpus) => (gpus <= 3 ? gpus : gpus <= 4 ? 2 : gpus <= 8 ? 4 : Math.ceil(Math.sqrt(gpus * 2)));

// Place nodes with some distances between GPUs, in device pixels; return the height, and fill in rows if they are given.
function flow(layout, sections, { pitch, tall, pad, title }, width, rows) {
  let y = EDGE;
  for (const section of sections) {
    if (rows) rows.titles.push({ pool: section.pool, y, nodes: section.nodes.length, gpus: section.gpus });
    y += title;
    let x = EDGE;
    let height = 0;
    let row = null;
    for (const node of section.nodes) {
      const across = columns(layout.counts[node]);
      const wide = across * pitch + pad;
      const high = Math.ceil(layout.counts[node] / across) * tall + pad;
      if (x + wide > width - EDGE && x > EDGE) {
        x = EDGE;
        y += height;
        height = 0;
        row = null;
      }
      if (rows) {
        if (!row) rows.list.push((row = { y, height: 0, nodes: [] }));
        rows.x[node] = x;
        rows.y[node] = y;
        row.nodes.push(node);
        row.height = Math.max(row.height, high);
      }
      height = Math.max(height, high);
      x += wide;
    }
    y += height + pad;
  }
  return y;
}

export class Arrangement {
  constructor(layout, width, height, ratio) {
    this.layout = layout;
    this.ratio = ratio;
    const sections = layout.pools.map((pool) => ({ pool, nodes: [], gpus: 0 }));
    this.first = new Uint32Array(layout.names.length + 1);
    layout.pool_of.forEach((pool, node) => {
      sections[pool].nodes.push(node);
      sections[pool].gpus += layout.counts[node];
      this.first[node + 1] = this.first[node] + layout.counts[node];
    });
    const byName = new Intl.Collator("en", { numeric: true });
    for (const section of sections) section.nodes.sort((one, other) => byName.compare(layout.names[one], layout.names[other]));
    this.order = sections.flatMap((section) => section.nodes);
    this.rank = new Uint32Array(this.order.length);
    this.order.forEach((node, rank) => (this.rank[node] = rank));
    this.titled = layout.pools.length > 1 || Boolean(layout.pools[0]);
    const [wide, high] = [Math.floor(width * ratio), Math.floor(height * ratio)];
    const room = (pitch) => Math.max(2, Math.round(pitch * (layout.names.length > 1 ? 0.55 : 0.3)));
    const title = (pitch) => ((this.titled ? TITLE : 0) + (pitch >= NAMED * ratio ? NAME : 0)) * ratio;
    const sized = (pitch, tall = pitch) => ({ pitch, tall, pad: room(pitch), title: title(pitch) });
    const fits = (size) => flow(layout, sections, size, wide, null) <= high - EDGE;
    let size = sized(Math.round(LARGEST * ratio));
    while (size.pitch > 2 && !fits(size)) size = sized(size.pitch - 1);
    // Whole pixels leave room: small cells become taller, and nodes stand further apart.
    if (size.pitch < 8 && fits(sized(size.pitch, size.pitch + 1))) size = sized(size.pitch, size.pitch + 1);
    while (size.pad < size.pitch * 1.2 && size.pitch < 16 && fits({ ...size, pad: size.pad + 1 })) size.pad += 1;
    Object.assign(this, size);
    const rows = { titles: [], list: [], x: new Float64Array(layout.names.length), y: new Float64Array(layout.names.length) };
    this.height = flow(layout, sections, size, wide, rows);
    this.width = wide;
    Object.assign(this, { titles: rows.titles, rows: rows.list, x: rows.x, y: rows.y });
  }

  columns(node) {
    return columns(this.layout.counts[node]);
  }

  // The node of a GPU, by its place.
  node(place) {
    let [low, high] = [0, this.layout.names.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.first[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // The place of the GPU at a point, in device pixels without zoom; -1 if there is none.
  at(x, y) {
    const row = this.rows.find((item) => y >= item.y && y < item.y + item.height);
    if (!row) return -1;
    for (const node of row.nodes) {
      const across = this.columns(node);
      if (x < this.x[node] || x >= this.x[node] + across * this.pitch) continue;
      const index = Math.floor((y - this.y[node]) / this.tall) * across + Math.floor((x - this.x[node]) / this.pitch);
      return index >= 0 && index < this.layout.counts[node] ? this.first[node] + index : -1;
    }
    return -1;
  }

  // The GPU that is shown before (-1) or after (1) another; the same one at the end.
  beside(place, step) {
    const node = this.node(place);
    const [first, last] = [this.first[node], this.first[node + 1] - 1];
    if (place + step >= first && place + step <= last) return place + step;
    const next = this.order[this.rank[node] + step];
    return next === undefined ? place : step > 0 ? this.first[next] : this.first[next + 1] - 1;
  }

  get firstPlace() {
    return this.first[this.order[0]];
  }

  get lastPlace() {
    return this.first[this.order.at(-1) + 1] - 1;
  }

  // The middle of a GPU's cell.
  middle(place) {
    const node = this.node(place);
    const [index, across] = [place - this.first[node], this.columns(node)];
    return [
      this.x[node] + ((index % across) + 0.5) * this.pitch,
      this.y[node] + (Math.floor(index / across) + 0.5) * this.tall,
    ];
  }
}
