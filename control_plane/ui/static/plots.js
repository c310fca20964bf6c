// Plots of usage: a column for each day, a bar for each name. Every plot has its numbers as text too.

import { h, s, section, show, table } from "./dom.js";
import { percent } from "./format.js";

const [WIDTH, HEIGHT, BASE] = [1000, 190, 160];
/** Share of a day's width that its column fills. */
const FILLED = 0.8;
/** Maximum number of days with a label below the columns. */
const MAX_LABELS = 8;

/**
 * A column for each day. `points` have `name` (a day) and `value`; `text` returns a value with its unit.
 */
export function columns(title, points, text) {
  const highest = Math.max(...points.map((point) => point.value), 0), each = WIDTH / points.length;
  const every = Math.ceil(points.length / MAX_LABELS);
  return [
    h("p", { class: "hint" }, `Highest day: ${text(highest)}.`),
    s("svg", { class: "columns", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}; the numbers are in the table below` },
      s("line", { x1: 0, x2: WIDTH, y1: BASE, y2: BASE }),
      points.map((point, index) => {
        const height = highest ? (BASE - 10) * point.value / highest : 0;
        return s("g", {}, s("title", {}, `${point.name}: ${text(point.value)}`),
          s("rect", { x: each * (index + (1 - FILLED) / 2), y: BASE - height, width: each * FILLED, height }),
          index % every === 0 && s("text", { x: each * (index + 0.5), y: BASE + 22 }, point.name.slice(5)));
      })),
  ];
}

/** A row for each name, with a bar for its share of `total`. `points` have `name` and `value`; `heads` name the first two columns. */
export function bars(title, heads, points, text, total) {
  return table(title, [...heads, "share"], points.map((point) => {
    return [point.name, text(point.value), bar(total ? point.value / total : 0)];
  }), "No records in this time.");
}

/** A bar for a share (0-1), with the share as text. */
export const bar = (share) => h("span", { class: "bar-line" }, s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
  s("rect", { width: 100 * Math.min(1, share), height: 10 })), percent(share));

/** A section whose content is replaced when its data arrives. */
export function pending(title, hint) {
  const body = h("div", { "aria-live": "polite" }, "…");
  const element = section(title, hint, body);
  return { element, show: (...children) => show(body, ...children) };
}
