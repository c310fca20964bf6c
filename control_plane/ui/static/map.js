// The world map: land, places with one or several regions, an arc for what flows between two places, and clients by country.

import { COUNTRIES, countryName, placeName } from "./countries.js";
import { h, s, show } from "./dom.js";
import { REASONS, demandOf, load } from "./fleet.js";
import { count, percent, rate } from "./format.js";
import { LAND } from "./land.js";
import { MAX_ARCS, arcsOf, placeLabels, placesOf } from "./map_layout.js";

/** Arcs of two reasons between the same places bend differently. */
const BENDS = { spillover: 0.18, failover: 0.23, override: 0.13, failback: 0.28, home: 0.08, more: 0.18, less: 0.23 };
/** Width (px) of the largest arc: of few arcs, and of many. */
const [MAX_ARC_PX, MAX_OF_MANY_PX, MANY] = [7, 4, 12];
/** Least extent (degrees of latitude) of the map, and its margins (degrees). */
const [MIN_SPAN_DEG, MARGIN_DEG] = [20, 12];
const MAX_ZOOM = 32;
const ZOOM_STEP = 1.6;
/** Movement (pixels) of a pointer from which on it drags the map and does not select. */
const DRAG_PX = 4;
const MAX_NAMED = 8;

export class FleetMap {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.land = s("path", { class: "land", d: LAND, "aria-hidden": "true" });
    this.layers = ["clients", "arcs", "places"].map((name) => s("g", { class: name }));
    this.svg = s("svg", { class: "map", role: "group", "aria-label": "World map of the fleet's regions" }, this.land, this.layers);
    this.zoom = 1;
    this.middle = null;
    // Until a state is known, the map is the whole world.
    this.last = [[], [], {}];
    this.note = h("p", { class: "hint" });
    const button = (label, text, action) => h("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.element = h("div", {}, h("div", { class: "map-bar" }, this.note, h("div", { class: "zoom" },
      button("Zoom in", "+", () => this.#zoomTo(this.zoom * ZOOM_STEP)), button("Zoom out", "−", () => this.#zoomTo(this.zoom / ZOOM_STEP)),
      button("Show all regions", "⌂", () => this.#zoomTo(1)))), this.svg);
    this.svg.addEventListener("wheel", (event) => {
      // Without a key the wheel scrolls the page.
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.#zoomTo(this.zoom * (event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP));
    }, { passive: false });
    this.svg.addEventListener("pointerdown", (event) => this.#drag(event));
    new ResizeObserver(() => this.#redraw()).observe(this.svg);
  }

  /** Draw a state of the fleet: regions of /v1/status, flows between them, and clients by country (see fleet.js). */
  update(regions, flows, options = {}) {
    this.last = [regions, flows, options];
    this.#redraw();
  }

  #redraw() {
    const [regions, flows, { model = "", clients = [], focus = "" }] = this.last;
    const project = this.#fit(regions);
    const places = placesOf(regions.map((region) => {
      const { slots, inFlight } = load(region, model);
      return { name: region.name, state: region.state, ...project(region.longitude_deg, region.latitude_deg), slots, inFlight, unready: region.unready_count, region };
    }), this.zoom < MAX_ZOOM);
    const placeOf = new Map(places.flatMap((place) => place.nodes.map((node) => [node.name, place])));
    const most = Math.max(1, ...places.map(({ slots }) => slots));
    for (const place of places) place.radius = 5 + 8 * Math.sqrt(place.slots / most) + (place.nodes.length > 1 ? 3 : 0);
    placeLabels(places, this.width, this.height);
    const pointed = placeOf.get(this.pointed) ?? placeOf.get(focus);
    const { arcs, count: total, share } = arcsOf(flows, placeOf, pointed);
    const [clientLayer, arcLayer, placeLayer] = this.layers;
    show(clientLayer, clientCircles(clients, project));
    show(arcLayer, arcs.map((arc) => arcPath(arc, arcs[0].perS, arcs.length > MANY ? MAX_OF_MANY_PX : MAX_ARC_PX)));
    show(placeLayer, places.map((place) => this.#place(place, model)));
    this.note.textContent = (total > MAX_ARCS ? `The ${MAX_ARCS} largest of ${count(total)} arcs, ${percent(share)} of what they carry. ` : "") +
      (pointed ? `Arcs of ${pointed.lines[0]} alone.` : total > MAX_ARCS ? "Point at a region, or choose it, to see its arcs alone." : "");
  }

  /** The scale and middle of the map; returns the position (px) of a longitude and latitude. */
  #fit(regions) {
    [this.width, this.height] = [this.svg.clientWidth || 1000, this.svg.clientHeight || 480];
    const xs = regions.map((region) => region.longitude_deg), ys = regions.map((region) => region.latitude_deg);
    const middle = (values) => (values.length ? (Math.min(...values) + Math.max(...values)) / 2 : 0);
    const span = (values) => (values.length ? Math.max(...values) - Math.min(...values) : 360);
    const all = Math.min(this.height / Math.max(MIN_SPAN_DEG, 1.3 * span(ys) + MARGIN_DEG), this.width / (1.12 * span(xs) + MARGIN_DEG));
    const scale = (this.scale = all * this.zoom);
    const { x, y } = this.shown = this.middle ?? { x: middle(xs), y: middle(ys) };
    const [left, top] = [this.width / 2 - x * scale, this.height / 2 + y * scale];
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.land.setAttribute("transform", `translate(${left} ${top}) scale(${scale})`);
    return (longitude, latitude) => ({ x: left + longitude * scale, y: top - latitude * scale });
  }

  #zoomTo(zoom, at = null) {
    this.zoom = Math.min(MAX_ZOOM, Math.max(1, zoom));
    const busiest = [...this.last[0]].sort((a, b) => demandOf(b) - demandOf(a))[0];
    if (this.zoom === 1) this.middle = null;
    else this.middle = at ?? this.middle ?? (busiest && { x: busiest.longitude_deg, y: busiest.latitude_deg });
    this.svg.classList.toggle("zoomed", this.zoom > 1);
    this.#redraw();
  }

  #drag(down) {
    if (this.zoom === 1 || down.button !== 0) return;
    const from = this.shown;
    let isDrag = false;
    const move = (event) => {
      const [dx, dy] = [event.clientX - down.clientX, event.clientY - down.clientY];
      isDrag ||= Math.hypot(dx, dy) > DRAG_PX;
      if (!isDrag) return;
      this.middle = { x: from.x - dx / this.scale, y: from.y + dy / this.scale };
      this.#redraw();
    };
    const up = () => window.removeEventListener("pointermove", move);
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up, { once: true });
    window.addEventListener("pointercancel", up, { once: true });
    this.svg.addEventListener("click", (event) => isDrag && event.stopPropagation(), { once: true, capture: true });
  }

  #place(place, model) {
    const { x, y, radius, nodes, label, lines, slots, inFlight } = place, isOne = nodes.length === 1, [{ region, name }] = nodes;
    const share = slots ? Math.min(1, inFlight / slots) : 0, arm = radius * 0.7;
    const select = () => (isOne ? this.onSelect(name) : this.#zoomTo(2 * this.zoom, { x: region.longitude_deg, y: region.latitude_deg }));
    const point = (to) => () => ((this.pointed = to), this.#redraw());
    const text = isOne ? describe(region, share, model)
      : `${nodes.length} regions, ${percent(share)} of slots busy: ${nodes.slice(0, MAX_NAMED).map((node) => `${node.name} ${node.state}`).join(", ")}` +
        (nodes.length > MAX_NAMED ? `, ${nodes.length - MAX_NAMED} more` : "") + ". Select it to zoom in";
    return s("g", {
      class: `region ${place.state}${isOne ? "" : " cluster"}`, tabindex: "0", role: isOne ? "link" : "button", "aria-label": text, onclick: select,
      onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), select()),
      onpointerenter: point(name), onpointerleave: point(null), onfocus: point(name), onblur: point(null),
    }, s("title", {}, text),
    label?.isFar && s("line", { class: "leader", x1: x, y1: y, x2: label.x, y2: label.edge }),
    s("circle", { class: "body", cx: x, cy: y, r: radius }),
    s("circle", { class: "fill", transform: `translate(${x} ${y}) rotate(-90)`, r: radius / 2, "stroke-width": radius, "stroke-dasharray": `${share * Math.PI * radius} 1000` }),
    isOne ? s("path", { class: "cross", d: `M${x - arm},${y - arm}l${2 * arm},${2 * arm}m0,${-2 * arm}l${-2 * arm},${2 * arm}` })
      : s("text", { class: "number", x, y: y + 4 }, nodes.length),
    label && s("text", { x: label.x, y: label.y, "text-anchor": label.anchor }, lines.map((line, index) =>
      s("tspan", { class: index ? "trouble" : null, x: label.x, dy: index ? 13 : 0 }, line))));
  }
}

const describe = (region, share, model) => `${region.name}, ${placeName(region)}: ${region.state}, ${percent(share)} of slots busy, ` +
  `${rate(demandOf(region, model))} from its clients${region.unready_count ? `, ${region.unready_count} endpoints not ready` : ""}`;

function arcPath({ from, to, why, perS, flows }, most, widest) {
  const parts = [...flows].sort((a, b) => b.perS - a.perS).slice(0, MAX_NAMED)
    .map((flow) => `${flow.origin} → ${flow.server}: ${flow.text ?? rate(flow.perS)}, ${why}`);
  if (flows.length > MAX_NAMED) parts.push(`${flows.length - MAX_NAMED} more`);
  const bend = BENDS[why] ?? BENDS.spillover, [dx, dy] = [to.x - from.x, to.y - from.y];
  const [mx, my] = [(from.x + to.x) / 2 + dy * bend, (from.y + to.y) / 2 - dx * bend];
  return s("path", { class: `arc ${why}`, d: `M${from.x},${from.y}Q${mx},${my} ${to.x},${to.y}`, "stroke-width": 0.8 + (widest - 0.8) * perS / most },
    s("title", {}, parts.join("\n")));
}

function clientCircles(clients, project) {
  const placed = clients.filter(({ country }) => COUNTRIES.has(country));
  const most = Math.max(1e-9, ...placed.map(({ perS }) => perS));
  return placed.map(({ country, perS }) => {
    const { longitude, latitude } = COUNTRIES.get(country), { x, y } = project(longitude, latitude);
    return s("circle", { cx: x, cy: y, r: 2 + 20 * Math.sqrt(perS / most) }, s("title", {}, `${countryName(country)}: ${rate(perS)}`));
  });
}

const STATES = [["healthy", "healthy"], ["degraded", "degraded, draining or recovering"], ["failed", "failed or suspect"], ["unknown", "no report"]];

/** What every mark on the map means. */
export function legend() {
  const mark = (state) => s("svg", { class: `mark region ${state}`, viewBox: "-9 -9 18 18", "aria-hidden": "true" }, s("circle", { class: "body", r: 7 }),
    state === "busy" && s("circle", { class: "fill", r: 3.5, "stroke-width": 7, "stroke-dasharray": "7 100", transform: "rotate(-90)" }),
    state === "number" && s("text", { class: "number", y: 4 }, "3"), s("path", { class: "cross", d: "M-5,-5L5,5M5,-5L-5,5" }));
  return h("ul", { class: "legend", "aria-label": "Legend of the map" },
    STATES.map(([state, text]) => h("li", {}, mark(state), text)),
    h("li", {}, mark("busy"), "busy slots"), h("li", {}, mark("number"), "several regions"),
    Object.keys(REASONS).map((why) => h("li", { title: REASONS[why] }, h("i", { class: `swatch ${why}` }), why === "home" ? "home is the nearest region with the model" : why)),
    h("li", {}, h("i", { class: "dot" }), "clients of a country"));
}
