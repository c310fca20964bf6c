// The last 15 minutes, which the control plane keeps, as small plots. Each has its numbers in words too.

import { get } from "./api.js";
import { s } from "./dom.js";
import { percent } from "./format.js";

/** Period (ms) between two reads; the control plane takes a sample each 10 s. */
const PERIOD_MS = 10_000;
const [WIDTH, HEIGHT] = [120, 22];

export class History {
  #series = new Map();

  /** `region` limits it to one region, of which it then has the pools too. */
  constructor(region = "") {
    this.path = `/v1/history${region && `?${new URLSearchParams({ region })}`}`;
    this.readAt = -Infinity;
  }

  /** Reads it, if it is due; returns whether it was read. */
  async refresh() {
    if (performance.now() - this.readAt < PERIOD_MS) return false;
    this.readAt = performance.now();
    const { series } = await get(this.path);
    this.#series = new Map(series.map(({ region, measure, model, values }) => [`${region}\n${measure}\n${model}`, values]));
    return true;
  }

  /** The values of a measure, oldest first, null where there was none; a region "" is the fleet, a model "" all models. */
  values(region, measure, model = "") {
    return this.#series.get(`${region}\n${measure}\n${model}`) ?? [];
  }
}

/** Scales of shares: `LOAD` begins at 0, `SHARE` at the lowest value. */
export const LOAD = Object.assign((value) => percent(value), { highest: 1 });
export const SHARE = Object.assign((value) => percent(value), { highest: 1, isOpen: true });

/** A line over the last 15 minutes; `text` returns a value with its unit, and may have the highest value of the scale. */
export function spark(title, values, text) {
  const present = values.filter((value) => value !== null);
  if (present.length < 2) return null;
  const most = Math.max(text.highest ?? 0, ...present), least = text.isOpen ? Math.min(...present, most - 0.01) : 0;
  const y = (value) => HEIGHT - 2 - (HEIGHT - 4) * (value - least) / (most - least || 1), step = WIDTH / (values.length - 1);
  const path = values.map((value, index) => (value === null ? "" : `${values[index - 1] == null ? "M" : "L"}${(index * step).toFixed(1)},${y(value).toFixed(1)}`)).join("");
  const words = `${title}, last 15 minutes: lowest ${text(Math.min(...present))}, highest ${text(Math.max(...present))}, latest ${text(present.at(-1))}`;
  return s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words }, s("title", {}, words), s("path", { d: path }));
}
