// The page: which view is shown, the search field, the theme, and whether data is live.

import { h, say } from "./dom.js";
import { ask, onState } from "./stream.js";
import { FleetView } from "./fleet.js";
import { NodesView, PodsView, nodeLink } from "./tables.js";
import { NodeView } from "./node.js";
import { GpuView } from "./gpu.js";

const at = (id) => document.getElementById(id);
const main = at("main");
let view = null;

// Theme: as the system has it, or as chosen.

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  say(at("theme"), name === "dark" ? "☀" : "☾");
  view?.recolor?.();
}

const system = matchMedia("(prefers-color-scheme: dark)");
const stored = () => {
  try {
    return localStorage.getItem("simgpu-theme");
  } catch {
    return null; // storage may be forbidden
  }
};
const systemTheme = () => (system.matches ? "dark" : "light");
system.addEventListener("change", () => setTheme(stored() ?? systemTheme()));
at("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("simgpu-theme", name);
  } catch {
    // only for this visit, then
  }
  setTheme(name);
});
setTheme(stored() ?? systemTheme());

// Views.

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that somebody typed
  }
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  view?.close();
  main.replaceChildren();
  const [first, node, third, index] = parts;
  main.className = first || "fleet";
  if (first === "pods") view = new PodsView(main);
  else if (first === "nodes" && third === "gpus") view = new GpuView(main, node, index);
  else if (first === "nodes" && node) view = new NodeView(main, node);
  else if (first === "nodes") view = new NodesView(main);
  else view = new FleetView(main);
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === (first || "fleet")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = ["SimGPU", node ?? first, index && `GPU ${index}`].filter(Boolean).join(" · ");
  if (search.value && view.find) find(search.value.trim()).catch(() => {});
}

// Whether data is live.

onState((state, seconds) => {
  const pill = at("state");
  const texts = { live: "live", lost: "reconnecting", away: "waiting", stale: "stale" };
  say(pill, texts[state]);
  pill.dataset.state = state;
  const stale = at("stale");
  stale.hidden = state === "live";
  document.body.classList.toggle("old", state === "stale" || state === "lost");
  if (state === "stale") say(stale, `No data for ${seconds} seconds. What you see is old; trying to reconnect.`);
  else if (state === "lost") say(stale, "The connection is lost. What you see may be old; trying to reconnect.");
  else if (state === "away") say(stale, "Connected, but there is nothing to show yet: the simulation has not started, or another controller leads.");
});

// Search.

const search = at("search");
const hits = at("hits");
let waiting = 0;
let chosen = -1;

function showHits(found) {
  hits.replaceChildren(...found.map((hit, number) =>
    h("li", { id: `hit-${number}`, role: "option", "aria-selected": "false", onmousedown: (event) => event.preventDefault(), onclick: () => open(hit) },
      h("span", { class: "kind" }, hit.kind), h("b", {}, hit.name), hit.kind === "node" ? null : h("span", { class: "soft" }, hit.node))));
  hits.hidden = !found.length;
  hits.found = found;
  search.setAttribute("aria-expanded", String(!hits.hidden));
  choose(-1);
}

function choose(number) {
  chosen = number;
  [...hits.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === number)));
  if (number >= 0) search.setAttribute("aria-activedescendant", `hit-${number}`);
  else search.removeAttribute("aria-activedescendant");
}

function open(hit) {
  showHits([]);
  search.blur();
  location.hash = hit.kind === "node" ? nodeLink(hit.name) : `${nodeLink(hit.node)}/gpus/${hit.index}`;
}

async function find(text) {
  if (view.find && !(view instanceof FleetView)) view.find(text);
  const found = view instanceof FleetView ? await view.find(text) : text ? await ask("/search", { q: text }) : null;
  if (document.activeElement === search && search.value.trim() === text) showHits(found?.hits ?? []);
}

search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => find(search.value.trim()).catch(() => showHits([])), 150);
});
search.addEventListener("keydown", (event) => {
  const count = hits.children.length;
  if (event.key === "ArrowDown" && count) choose((chosen + 1) % count);
  else if (event.key === "ArrowUp" && count) choose((chosen + count - 1) % count);
  else if (event.key === "Enter" && hits.found?.length) open(hits.found[Math.max(0, chosen)]);
  else if (event.key === "Escape") {
    search.value = "";
    find("");
    showHits([]);
    search.blur();
  } else return;
  event.preventDefault();
});
search.addEventListener("blur", () => showHits([]));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName) && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    search.focus();
  }
});

// The part behind the # is the view, so this link must not change it.
at("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => {
  route();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
route();
