// The world map: land, regions, and an arc for each flow between regions. Elements are kept between updates, so that
// an update of 100 regions and 2,000 arcs changes attributes only.

import { COUNTRIES, countryName } from "./countries.js";
import { h, s } from "./dom.js";
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
const DASHES = { failover: [6, 4], failback: [2, 4], override: [10, 3, 2, 3], less: [4, 4] };

const MAX_ZOOM = 16;
const ZOOM_STEP = 1.6;
/** Movement (pixels) of a pointer from which on it drags the map and does not select. */
const DRAG_PX = 4;

const place = (region) => ({ x: region.longitude_deg, y: -region.latitude_deg });

export class FleetMap {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.arcs = new Map();
    this.regions = new Map();
    this.clients = new Map();
    this.clientLayer = s("g", { class: "clients" });
    this.arcLayer = s("g", { class: "arcs" });
    this.regionLayer = s("g");
    this.svg = s("svg", { class: "map", role: "group", "aria-label": "World map of the fleet's regions" },
      s("path", { class: "land", d: LAND, "aria-hidden": "true" }), this.clientLayer, this.arcLayer, this.regionLayer);
    this.zoom = 1;
    this.middle = null;
    const button = (label, text, action) => h("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.element = h("div", { class: "map-frame" }, this.svg, h("div", { class: "zoom" },
      button("Zoom in", "+", () => this.#zoomTo(this.zoom * ZOOM_STEP)), button("Zoom out", "−", () => this.#zoomTo(this.zoom / ZOOM_STEP)),
      button("Show all regions", "⌂", () => this.#zoomTo(1))));
    this.svg.addEventListener("wheel", (event) => {
      // Without a key the wheel scrolls the page.
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.#zoomTo(this.zoom * (event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP));
    }, { passive: false });
    this.svg.addEventListener("pointerdown", (event) => this.#drag(event));
  }

  #zoomTo(zoom) {
    this.zoom = Math.min(MAX_ZOOM, Math.max(1, zoom));
    const busiest = [...(this.last?.[0] ?? [])].sort((a, b) => demandOf(b) - demandOf(a))[0];
    if (this.zoom === 1) this.middle = null;
    else if (busiest) this.middle ??= place(busiest);
    this.svg.classList.toggle("zoomed", this.zoom > 1);
    if (this.last) this.update(...this.last);
  }

  #drag(down) {
    if (this.zoom === 1 || down.button !== 0) return;
    const from = this.middle ?? this.shown, perPixel = this.svg.viewBox.baseVal.width / this.svg.clientWidth;
    let isDrag = false;
    const move = (event) => {
      const [dx, dy] = [event.clientX - down.clientX, event.clientY - down.clientY];
      isDrag ||= Math.hypot(dx, dy) > DRAG_PX;
      if (!isDrag) return;
      this.middle = { x: from.x - dx * perPixel, y: from.y - dy * perPixel };
      this.#fit([...this.last[0].map(place)]);
    };
    const up = () => window.removeEventListener("pointermove", move);
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up, { once: true });
    window.addEventListener("pointercancel", up, { once: true });
    this.svg.addEventListener("click", (event) => isDrag && event.stopPropagation(), { once: true, capture: true });
  }

  /** Draw a state of the fleet: regions of /v1/status, flows between them, and clients by country (see fleet.js). */
  update(regions, flows, options = {}) {
    const { model = "", clients = [] } = options;
    this.last = [regions, flows, options];
    const places = new Map(regions.map((region) => [region.name, place(region)]));
    const unit = this.#fit([...places.values()]);
    this.#drawRegions(regions, model, unit);
    this.#drawArcs(flows, places, unit);
    this.#drawClients(clients, unit);
  }

  #fit(places) {
    const xs = places.map(({ x }) => x), ys = places.map(({ y }) => y);
    const middle = (values) => (Math.min(...values) + Math.max(...values)) / 2;
    const span = (values) => Math.max(...values) - Math.min(...values);
    const height = Math.min(180, Math.max(MIN_SPAN_DEG / 2, span(ys) * 1.5 + 12, (span(xs) * 1.2 + 20) / 2.1)) / this.zoom;
    const width = height * 2.1;
    const { x, y } = this.shown = this.middle ?? (places.length ? { x: middle(xs), y: middle(ys) } : { x: 0, y: -20 });
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
      drawn.unready.setAttribute("transform", `translate(${radius * 0.8} ${-radius * 0.8})`);
      drawn.unreadyBody.setAttribute("r", region.unready_count ? 6 * size * unit : 0);
      drawn.unreadyCount.setAttribute("font-size", 9 * size * unit);
      drawn.unreadyCount.setAttribute("y", 3.2 * size * unit);
      drawn.unreadyCount.textContent = region.unready_count || "";
      const text = `${region.name}, ${region.city}: ${region.state}, ${percent(share)} of slots busy, ${rate(demandOf(region, model))} from its clients` +
        (region.unready_count ? `, ${region.unready_count} endpoints not ready` : "");
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
      unreadyBody: s("circle"),
      unreadyCount: s("text", { "text-anchor": "middle" }),
    };
    drawn.unready = s("g", { class: "unready", "aria-hidden": "true" }, drawn.unreadyBody, drawn.unreadyCount);
    drawn.group = s("g", { tabindex: "0", role: "link", onclick: select, onkeydown: onKey },
      drawn.title, drawn.body, drawn.fill, drawn.cross, drawn.label, drawn.unready);
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
      const dash = DASHES[flow.why];
      drawn.path.setAttribute("stroke-dasharray", dash ? dash.map((part) => part * unit).join(" ") : "none");
      drawn.title.textContent = `${flow.origin} → ${flow.server}: ${flow.text ?? rate(flow.perS)}, ${flow.why}`;
    }
    for (const [key, drawn] of this.arcs) {
      if (!seen.has(key)) (drawn.path.remove(), this.arcs.delete(key));
    }
  }

  #drawClients(clients, unit) {
    const placed = clients.filter(({ country }) => COUNTRIES.has(country)), seen = new Set();
    const most = Math.max(1e-9, ...placed.map(({ perS }) => perS));
    for (const { country, perS } of placed) {
      seen.add(country);
      const drawn = this.clients.get(country) ?? this.#addClients(country);
      drawn.circle.setAttribute("r", (2 + 20 * Math.sqrt(perS / most)) * unit);
      drawn.title.textContent = `${countryName(country)}: ${rate(perS)}`;
    }
    for (const [country, drawn] of this.clients) {
      if (!seen.has(country)) (drawn.circle.remove(), this.clients.delete(country));
    }
  }

  #addClients(country) {
    const { latitude, longitude } = COUNTRIES.get(country);
    const title = s("title");
    const circle = s("circle", { cx: longitude, cy: -latitude }, title);
    this.clientLayer.append(circle);
    this.clients.set(country, { circle, title });
    return { circle, title };
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
