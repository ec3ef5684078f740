// Elements from names, attributes and children. Text is always text: nothing here makes markup from a string.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "vars") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// Replace text only where it is different, so that screen readers and selections are left alone.
export function say(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

// Keep rows of a table or list in step with items: `make` an element for a new key, `update` all.
export function keep(parent, items, key, make, update) {
  const known = parent.kept ?? (parent.kept = new Map());
  const seen = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    if (seen.has(name)) continue;
    seen.add(name);
    let element = known.get(name);
    if (!element) known.set(name, (element = make(item)));
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const [name, element] of known) {
    if (!seen.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
}
