// The event stream of one view. It reconnects by itself, pauses while the page is hidden, and reports stale data.

const STALE_SECONDS = 8;
const LONGEST_WAIT = 10_000;

let current = null;
let heard = 0;
let report = () => {};

export function onState(callback) {
  report = callback;
}

class Stream {
  constructor(query, handlers) {
    this.query = query;
    this.handlers = handlers;
    this.wait = 500;
    this.open();
  }

  // Open it anew; while the page is hidden, that waits until it is seen.
  open() {
    this.close();
    if (document.hidden) return;
    this.opened = Date.now();
    const source = (this.source = new EventSource(`/api/v1/stream?${new URLSearchParams(this.query)}`));
    const names = [...Object.keys(this.handlers), "ping", "away"];
    for (const name of names) {
      source.addEventListener(name, (event) => {
        if (this.source !== source) return;
        heard = Date.now();
        this.wait = 500;
        report(name === "away" ? "away" : "live");
        this.handlers[name]?.(JSON.parse(event.data));
      });
    }
    source.onerror = () => {
      if (this.source !== source) return;
      report("lost");
      this.retry();
    };
  }

  // What the client has is old by then: everything is asked for.
  retry() {
    this.close();
    delete this.query.layout;
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(LONGEST_WAIT, this.wait * 2);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}

export function watch(query, handlers) {
  current?.close();
  heard = Date.now();
  current = new Stream(query, handlers);
}

document.addEventListener("visibilitychange", () => {
  if (!current) return;
  if (document.hidden) current.close();
  else {
    heard = Date.now();
    delete current.query.layout;
    current.open();
  }
});

// A server that hangs, or a computer that slept, breaks no connection: silence is noticed here, and a new one is tried.
setInterval(() => {
  if (!current || document.hidden) return;
  const silent = (since) => Date.now() - since > STALE_SECONDS * 1000;
  if (!silent(heard)) return;
  report("stale", Math.round((Date.now() - heard) / 1000));
  if (current.source && silent(current.opened)) current.retry();
}, 1000);

export async function ask(path, parameters) {
  const query = parameters ? `?${new URLSearchParams(parameters)}` : "";
  const answer = await fetch(`/api/v1${path}${query}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? answer.statusText);
  return body;
}

// Bytes of base64 text.
export function unpack(text) {
  const found = atob(text);
  const bytes = new Uint8Array(found.length);
  for (let at = 0; at < found.length; at++) bytes[at] = found.charCodeAt(at);
  return bytes;
}

export function places(text) {
  const gaps = unpack(text);
  const found = new Uint32Array(gaps.length);
  let count = 0;
  let place = -1;
  for (const gap of gaps) {
    place += gap;
    if (gap !== 255) found[count++] = ++place;
  }
  return found.subarray(0, count);
}
