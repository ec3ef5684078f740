// Numbers with their units, as people write them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);

function scaled(value, units, step) {
  let place = 0;
  let left = value;
  while (Math.abs(left) >= step && place < units.length - 1) {
    left /= step;
    place += 1;
  }
  const digits = Math.abs(left) >= 100 || place === 0 ? 0 : Math.abs(left) >= 10 ? 1 : 2;
  return [left.toFixed(digits), units[place]];
}

export const power = (watts) => scaled(watts, ["W", "kW", "MW", "GW"], 1000);
export const energy = (joules) => scaled(joules / 3600, ["Wh", "kWh", "MWh", "GWh", "TWh"], 1000);
export const memory = (mib) => scaled(mib, ["MiB", "GiB", "TiB", "PiB"], 1024);
export const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB", "EB"], 1000);
export const text = (pair) => `${pair[0]} ${pair[1]}`;
export const NONE = "–"; // in place of a reading that there is not, such as of a lost GPU
export const percent = (value) => `${Math.round(value)} %`;

export function ago(moment) {
  const at = typeof moment === "number" ? moment * 1000 : Date.parse(moment);
  if (!Number.isFinite(at)) return "";
  const seconds = Math.max(0, Math.round((Date.now() - at) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}
