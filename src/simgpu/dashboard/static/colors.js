// Colours of cells by column: ramps for numbers, a few colours for states, a hue for each namespace.

const RAMPS = {
  dark: {
    utilization: ["#233044", "#27407a", "#2a6fb0", "#1fa3a0", "#7bcf5c", "#f7e14a"],
    power: ["#231f2e", "#56206e", "#a52c60", "#e2553c", "#fb9a2a", "#fcf3a4"],
    temperature: ["#21405f", "#2f7f9e", "#6fb7a0", "#e3c76b", "#e8803f", "#d6293c"],
    memory: ["#1f2433", "#3c3576", "#6a45b4", "#a25ad6", "#d985dd", "#fbd3ee"],
  },
  light: {
    utilization: ["#d6dde6", "#bfe0e6", "#74c3cf", "#2f97b3", "#1c659c", "#17356f"],
    power: ["#e9e6ea", "#f7d9b0", "#f6ad6b", "#e4713f", "#b73247", "#611a4d"],
    temperature: ["#8fbbe0", "#a9d3d8", "#d3dfbf", "#f2cf84", "#ea8f4f", "#c9283b"],
    memory: ["#e6e4ee", "#d5c8ec", "#b79ae0", "#9468cb", "#6f3bab", "#44176f"],
  },
};

const STATES = {
  dark: ["#1f6f5c", "#e0a32e", "#f0506e", "#ff7bf0"],
  light: ["#9ad7c2", "#e0a32e", "#dc2f50", "#a3169b"],
};

export const STATE_NAMES = ["healthy", "throttled", "unhealthy", "lost"];

export const SCALES = {
  utilization: { label: "Utilisation", unit: "%", low: 0, high: 100 },
  power: { label: "Power", unit: "% of limit", low: 0, high: 100 },
  temperature: { label: "Temperature", unit: "°C", low: 30, high: 90 },
  memory: { label: "Memory", unit: "% used", low: 0, high: 100 },
  health: { label: "Health" },
  owner: { label: "Owner" },
};

export const theme = () => document.documentElement.dataset.theme;

function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

export function ramp(stops, share) {
  const at = Math.min(0.99999, Math.max(0, share)) * (stops.length - 1);
  const [from, to] = [rgb(stops[Math.floor(at)]), rgb(stops[Math.floor(at) + 1])];
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * (at % 1)));
}

export const stops = (show) => RAMPS[theme()][show];
export const states = () => STATES[theme()];

// Colours of all values of a column, as pixels of an image.
export function table(show) {
  const found = new Uint32Array(256);
  if (show === "health") {
    for (let value = 0; value < 256; value++) found[value] = packed(rgb(states()[Math.min(3, value)]));
    return found;
  }
  const { low, high } = SCALES[show];
  for (let value = 0; value < 256; value++) {
    // One percent is not idle: it starts well above the colour of rest.
    const share = (value - low) / (high - low);
    const lifted = show === "utilization" && value > 0 ? 0.14 + 0.86 * share : share;
    found[value] = packed(ramp(stops(show), lifted));
  }
  return found;
}

function hsl(hue, saturation, lightness) {
  const strength = saturation * Math.min(lightness, 1 - lightness);
  const channel = (offset) => {
    const turn = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - strength * Math.max(-1, Math.min(turn - 3, 9 - turn, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

const HUES = 137.508;

function owned(namespace, pod) {
  const hue = (namespace * HUES) % 360;
  const shade = (pod % 97) / 97;
  return theme() === "dark" ? hsl(hue, 0.55, 0.42 + 0.24 * shade) : hsl(hue, 0.52, 0.4 + 0.26 * shade);
}

const known = new Map();
let knownIn = "";

export function owner(value) {
  if (knownIn !== theme() || known.size > 200_000) {
    known.clear();
    knownIn = theme();
  }
  let found = known.get(value);
  if (found === undefined) {
    found = value === 0 ? packed(rgb(stops("utilization")[0])) : packed(owned(value >>> 16, value & 65535));
    known.set(value, found);
  }
  return found;
}

export const namespaceColor = (hash) => `rgb(${owned(hash, 48).join(" ")})`;
export const css = (pixel) => `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
export const light = (pixel) => 0.3 * (pixel & 255) + 0.59 * ((pixel >> 8) & 255) + 0.11 * ((pixel >> 16) & 255) > 140;
