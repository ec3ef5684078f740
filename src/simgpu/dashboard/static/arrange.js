// Where each node and GPU is on the canvas: pools below each other, nodes in rows, GPUs in small blocks.

const TITLE = 24;
const LARGEST = 34;
const EDGE = 8;

const columns = (gpus) => (gpus <= 3 ? gpus : gpus <= 4 ? 2 : gpus <= 8 ? 4 : Math.ceil(Math.sqrt(gpus * 2)));

// Try a distance between GPUs, in device pixels; return the rows, or only the height.
function flow(layout, sections, pitch, pad, title, width, rows) {
  let y = EDGE;
  for (const section of sections) {
    if (rows && title) rows.titles.push({ pool: section.pool, y, nodes: section.nodes.length, gpus: section.gpus });
    y += title;
    let x = EDGE;
    let height = 0;
    let row = null;
    for (const node of section.nodes) {
      const across = columns(layout.counts[node]);
      const wide = across * pitch + pad;
      const high = Math.ceil(layout.counts[node] / across) * pitch + pad;
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
    const titled = layout.pools.length > 1 || layout.pools[0] ? TITLE * ratio : 0;
    const [wide, high] = [Math.floor(width * ratio), Math.floor(height * ratio)];
    const room = (pitch) => Math.max(2, Math.round(pitch * (layout.names.length > 1 ? 0.55 : 0.3)));
    let pitch = Math.round(LARGEST * ratio);
    while (pitch > 2 && flow(layout, sections, pitch, room(pitch), titled, wide, null) > high - EDGE) pitch -= 1;
    this.pitch = pitch;
    this.pad = room(pitch);
    this.title = titled;
    const rows = { titles: [], list: [], x: new Float64Array(layout.names.length), y: new Float64Array(layout.names.length) };
    this.height = flow(layout, sections, pitch, this.pad, titled, wide, rows);
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
      const index = Math.floor((y - this.y[node]) / this.pitch) * across + Math.floor((x - this.x[node]) / this.pitch);
      return index >= 0 && index < this.layout.counts[node] ? this.first[node] + index : -1;
    }
    return -1;
  }

  // The middle of a GPU's cell.
  middle(place) {
    const node = this.node(place);
    const [index, across] = [place - this.first[node], this.columns(node)];
    return [
      this.x[node] + ((index % across) + 0.5) * this.pitch,
      this.y[node] + (Math.floor(index / across) + 0.5) * this.pitch,
    ];
  }
}
