// The world map: land, regions, and an arc for each flow between regions. Elements are kept between updates, so that
// an update of 100 regions and 2,000 arcs changes attributes only.

import { s } from "./dom.js";
import { demandOf, load } from "./fleet.js";
import { percent, rate } from "./format.js";
import { LAND } from "./land.js";

const BEND = 0.18;
const MAX_ARC_WIDTH = 7;
/** Above so many arcs or regions on the map, each is drawn smaller. */
const ROOM = { arcs: 120, regions: 30 };
/** Flows below this share of the largest are not drawn: they would be invisible. */
const MIN_SHARE = 0.0005;
const MIN_SPAN_DEG = 40;

const place = (region) => ({ x: region.longitude_deg, y: -region.latitude_deg });

export class FleetMap {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.arcs = new Map();
    this.regions = new Map();
    this.arcLayer = s("g", { class: "arcs" });
    this.regionLayer = s("g");
    this.svg = s("svg", { class: "map", role: "group", "aria-label": "World map of the fleet's regions" },
      s("path", { class: "land", d: LAND, "aria-hidden": "true" }), this.arcLayer, this.regionLayer);
  }

  /** Draw a state of the fleet: regions of /v1/status, and flows between them (see fleet.js). */
  update(regions, flows, model = "") {
    const places = new Map(regions.map((region) => [region.name, place(region)]));
    const unit = this.#fit([...places.values()]);
    this.#drawRegions(regions, model, unit);
    this.#drawArcs(flows, places, unit);
  }

  #fit(places) {
    const xs = places.map(({ x }) => x), ys = places.map(({ y }) => y);
    const middle = (values) => (Math.min(...values) + Math.max(...values)) / 2;
    const span = (values) => Math.max(...values) - Math.min(...values);
    const height = Math.min(180, Math.max(MIN_SPAN_DEG / 2, span(ys) * 1.5 + 12, (span(xs) * 1.2 + 20) / 2.1));
    const width = height * 2.1;
    const [x, y] = places.length ? [middle(xs), middle(ys)] : [0, -20];
    this.svg.setAttribute("viewBox", `${x - width / 2} ${y - height / 2} ${width} ${height}`);
    return height / 400;
  }

  #drawRegions(regions, model, unit) {
    const most = Math.max(1, ...regions.map((region) => load(region, model).slots));
    const size = Math.min(1, Math.sqrt(ROOM.regions / Math.max(1, regions.length)));
    const seen = new Set();
    for (const region of regions) {
      seen.add(region.name);
      const drawn = this.regions.get(region.name) ?? this.#addRegion(region.name);
      const { x, y } = place(region);
      const { slots, share } = load(region, model);
      const radius = (5 + 8 * Math.sqrt(slots / most)) * size * unit;
      drawn.group.setAttribute("class", `region ${region.state}`);
      drawn.group.setAttribute("transform", `translate(${x} ${y})`);
      drawn.body.setAttribute("r", radius);
      drawn.body.setAttribute("stroke-width", 2 * unit);
      drawn.fill.setAttribute("r", radius / 2);
      drawn.fill.setAttribute("stroke-width", radius);
      drawn.fill.setAttribute("stroke-dasharray", `${Math.min(1, share) * Math.PI * radius} 1000`);
      const arm = radius * 0.8;
      drawn.cross.setAttribute("d", `M${-arm},${-arm}L${arm},${arm}M${arm},${-arm}L${-arm},${arm}`);
      drawn.cross.setAttribute("stroke-width", 2.5 * unit);
      drawn.label.setAttribute("y", radius + 13 * size * unit);
      drawn.label.setAttribute("font-size", 12 * size * unit);
      drawn.label.setAttribute("stroke-width", 3 * unit);
      const text = `${region.name}, ${region.city}: ${region.state}, ${percent(share)} of slots busy, ${rate(demandOf(region, model))} from its clients`;
      drawn.title.textContent = text;
      drawn.group.setAttribute("aria-label", text);
    }
    for (const [name, drawn] of this.regions) {
      if (!seen.has(name)) (drawn.group.remove(), this.regions.delete(name));
    }
    this.#hideCoveredLabels(regions, model, 12 * size * unit);
  }

  /** A label that would cover another is hidden until its region is pointed at; states that are not healthy and large regions win. */
  #hideCoveredLabels(regions, model, fontSize) {
    const rank = (region) => (["healthy", "unknown"].includes(region.state) ? 0 : 1e9) + load(region, model).slots;
    const shown = [];
    for (const region of [...regions].sort((a, b) => rank(b) - rank(a))) {
      const { x, y } = place(region), { label } = this.regions.get(region.name);
      const half = 0.3 * fontSize * region.name.length, bottom = y + Number(label.getAttribute("y"));
      const covers = shown.some((other) => Math.abs(other.x - x) < other.half + half && Math.abs(other.bottom - bottom) < fontSize);
      label.classList.toggle("covered", covers);
      if (!covers) shown.push({ x, half, bottom });
    }
  }

  #addRegion(name) {
    const select = () => this.onSelect(name);
    const onKey = (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), select());
    const drawn = {
      body: s("circle", { class: "body" }),
      fill: s("circle", { class: "fill", transform: "rotate(-90)" }),
      cross: s("path", { class: "cross" }),
      label: s("text", { "text-anchor": "middle" }, name),
      title: s("title"),
    };
    drawn.group = s("g", { tabindex: "0", role: "link", onclick: select, onkeydown: onKey },
      drawn.title, drawn.body, drawn.fill, drawn.cross, drawn.label);
    this.regionLayer.append(drawn.group);
    this.regions.set(name, drawn);
    return drawn;
  }

  #drawArcs(flows, places, unit) {
    const between = flows.filter((flow) => flow.origin !== flow.server);
    const most = Math.max(1e-9, ...between.map((flow) => flow.perS));
    const scale = Math.min(1, Math.sqrt(ROOM.arcs / Math.max(1, between.length)));
    this.arcLayer.setAttribute("opacity", 0.3 + 0.7 * scale);
    const seen = new Set();
    for (const flow of between) {
      const from = places.get(flow.origin), to = places.get(flow.server);
      if (!from || !to || flow.perS < MIN_SHARE * most) continue;
      const key = `${flow.origin}\n${flow.server}\n${flow.why}`;
      seen.add(key);
      const drawn = this.arcs.get(key) ?? this.#addArc(key);
      drawn.path.setAttribute("class", `arc ${flow.why}`);
      drawn.path.setAttribute("d", curve(from, to));
      drawn.path.setAttribute("stroke-width", (0.6 + (MAX_ARC_WIDTH - 0.6) * Math.sqrt(flow.perS / most)) * scale * unit);
      const dash = { failover: [6, 4], failback: [2, 4] }[flow.why];
      drawn.path.setAttribute("stroke-dasharray", dash ? dash.map((part) => part * unit).join(" ") : "none");
      drawn.title.textContent = `${flow.origin} → ${flow.server}: ${rate(flow.perS)}, ${flow.why}`;
    }
    for (const [key, drawn] of this.arcs) {
      if (!seen.has(key)) (drawn.path.remove(), this.arcs.delete(key));
    }
  }

  #addArc(key) {
    const title = s("title");
    const path = s("path", {}, title);
    this.arcLayer.append(path);
    this.arcs.set(key, { path, title });
    return { path, title };
  }
}

function curve(from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const [mx, my] = [(from.x + to.x) / 2 + dy * BEND, (from.y + to.y) / 2 - dx * BEND];
  return `M${from.x},${from.y}Q${mx},${my} ${to.x},${to.y}`;
}
