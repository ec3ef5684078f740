// Which blocks of nodes the canvas shows: changes of others are not sent.

const MOST_SHARE = 0.6; // of all blocks, from which on everything is asked for
const REST_MILLISECONDS = 200; // without a movement, before another part is asked for
const LONGEST_MILLISECONDS = 1000; // of a movement without rest

export class VisibleParts {
  // `visible` returns the nodes in view, `ask` is called with the blocks to ask for; null is all of them.
  constructor(visible, ask) {
    Object.assign(this, { visible, ask, asked: null, cells: [] });
  }

  close() {
    clearTimeout(this.timer);
  }

  // The cells of each block, in order, of a new layout.
  setLayout({ block_of: blocks, counts }) {
    this.blockOf = blocks;
    const found = [];
    let place = 0;
    blocks.forEach((block, node) => {
      const cells = (found[block] ??= []);
      for (let left = counts[node]; left > 0; left--) cells.push(place++);
    });
    this.cells = found;
  }

  // Everything is asked for from now on.
  reset() {
    this.asked = null;
  }

  moved() {
    const now = Date.now();
    if (!this.timer) this.since = now;
    clearTimeout(this.timer);
    const wait = Math.max(0, Math.min(REST_MILLISECONDS, this.since + LONGEST_MILLISECONDS - now));
    this.timer = setTimeout(() => this.#settle(), wait);
  }

  #settle() {
    this.timer = 0;
    if (!this.blockOf) return;
    const seen = new Set(this.visible().map((node) => this.blockOf[node]));
    const wanted = seen.size >= MOST_SHARE * this.cells.length ? null : seen;
    if (this.#enough(wanted)) return;
    this.asked = wanted;
    this.ask(wanted);
  }

  // What was asked for is enough, and not much more than what is in view.
  #enough(wanted) {
    if (!wanted || !this.asked) return wanted === this.asked;
    return this.asked.size <= 2 * wanted.size && [...wanted].every((block) => this.asked.has(block));
  }
}

// Blocks as bits of a hexadecimal number; empty for all of them.
export function mask(blocks) {
  if (!blocks) return "";
  const digits = Array(64).fill(0);
  for (const block of blocks) digits[63 - (block >> 2)] |= 1 << (block & 3);
  return digits.map((digit) => digit.toString(16)).join("").replace(/^0+(?=.)/, "");
}
