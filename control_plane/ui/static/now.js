// What the fleet does now: map, regions, models, spillover, objectives, endpoints in trouble, clients, events.

import { COUNTRIES, countryName } from "./countries.js";
import { h, section, show, table, wide } from "./dom.js";
import { describeEvent } from "./events.js";
import { REASONS, countries, demandOf, flows, load, modelLoad, models, overridesOf, spilloverOf } from "./fleet.js";
import { count, duration, moment, percent, rate } from "./format.js";
import { FleetMap } from "./map.js";

const STATE_HINTS = {
  healthy: "serves",
  degraded: "few endpoints ready",
  suspect: "does not answer, failure not confirmed",
  failed: "does not answer",
  recovering: "returns by steps",
  draining: "emptied on purpose",
  unknown: "no report yet",
};

/** Rows of the longer tables. */
const MAX_ROWS = 50;
const MAX_COUNTRIES = 20;

export class NowView {
  constructor() {
    this.map = new FleetMap((region) => (location.hash = `#/region/${encodeURIComponent(region)}`));
    this.model = "";
    this.choice = h("select", { id: "model", onchange: () => ((this.model = this.choice.value), this.#draw()) });
    this.showsClients = h("input", { type: "checkbox", checked: true, onchange: () => this.#draw() });
    this.totals = h("dl", { class: "totals" });
    this.tables = h("div", { class: "grid" });
    this.element = h("div", {},
      h("section", { class: "wide" },
        h("div", { class: "bar" }, h("h1", {}, "Now"), h("label", {}, "Model ", this.choice),
          h("label", { class: "check" }, this.showsClients, "clients by country"), legend()),
        this.totals, this.map.element),
      this.tables);
  }

  update(status, events) {
    this.status = status;
    this.events = events;
    const names = ["", ...models(status)];
    if (names.join("\n") !== this.names) {
      this.names = names.join("\n");
      this.choice.replaceChildren(...names.map((name) => h("option", { value: name }, name || "all models")));
      this.choice.value = names.includes(this.model) ? this.model : "";
      this.model = this.choice.value;
    }
    this.#draw();
  }

  #draw() {
    const { status, model } = this;
    if (!status) return;
    const found = flows(status, model), clients = countries(status);
    this.map.update(status.regions, found, { model, clients: this.showsClients.checked ? clients : [] });
    show(this.totals, totals(status, found, model));
    const away = found.filter((flow) => flow.origin !== flow.server && flow.perS > 0).sort((a, b) => b.perS - a.perS);
    show(this.tables,
      wide("Regions", "", table("Regions", ["region", "state", "load", "ready endpoints", "waiting", "demand", "last report"],
        status.regions.map((region) => regionRow(status, region, model)))),
      wide("Models", "Load against capacity over all regions. “Missing” is capacity that lacks now, or after the loss of one region.",
        table("Models", ["model", "load", "ready endpoints", "waiting", "demand", "missing"],
          models(status).filter((name) => !model || name === model).map((name) => modelRow(status, name)))),
      section("Between regions", "Demand times the plan's share.", table("Flows between regions",
        ["from", "to", "traffic", "reason", "models"],
        away.slice(0, MAX_ROWS).map((flow) => [flow.origin, flow.server, rate(flow.perS), h("span", { title: REASONS[flow.why] }, flow.why), [...flow.models].join(", ")]),
        "Every region serves its own clients.")),
      section("Headroom and spill credits", "Headroom: free slots that a region grants credits for. A region spills beyond the plan only on credits that it holds.",
        table("Spill credits", ["region", "model", "headroom", "granted to others", "held elsewhere", "waiting"], creditRows(status, model),
          "No agent reports any.")),
      section("Service objectives", "Over the last five minutes, by the region that clients reach.", table("Service objectives", ["model", "region", "target", "attained", "requests"],
        status.regions.flatMap((region) => region.objectives.filter((each) => !model || each.model === model).map((each) => [
          each.model, region.name, `${percent(each.share)} ${each.measure === "total" ? "complete" : "begin"} within ${duration(each.limit_s)}`,
          each.attained === null ? "no traffic" : h("span", { class: each.is_met ? "good" : "bad" }, `${each.is_met ? "✓ met" : "✗ missed"}, ${percent(each.attained)}`),
          count(each.answers),
        ])), "The policy sets no objective.")),
      section("Endpoints that receive no requests", "", table("Endpoints without requests", ["region", "endpoint", "state", "reason"],
        status.regions.flatMap((region) => [
          ...region.unready.map((each) => [regionLink(region.name), each.name, h("span", { class: `badge ${each.state}` }, each.state), each.reason]),
          ...(region.unready_count > region.unready.length ? [[regionLink(region.name), `${region.unready_count - region.unready.length} more`, "", ""]] : []),
        ]).slice(0, MAX_ROWS), "None.")),
      section("Clients by country", "Demand of all models.", table("Clients by country", ["country", "demand", "share"], countryRows(clients),
        "No request yet.")),
      section("Latest events", "", eventList(this.events.slice(0, 12))));
  }
}

function totals(status, found, model) {
  const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);
  const loads = status.regions.map((region) => load(region, model));
  const slots = sum(loads, (each) => each.slots), busy = sum(loads, (each) => each.inFlight);
  const demand = sum(found, (flow) => flow.perS), away = sum(found.filter((flow) => flow.origin !== flow.server), (flow) => flow.perS);
  const unhealthy = status.regions.filter((region) => region.state !== "healthy").length;
  return Object.entries({
    demand: rate(demand),
    "served elsewhere": demand ? percent(away / demand) : "none",
    load: `${slots ? percent(busy / slots) : "none"} of ${count(slots)} slots`,
    waiting: `${count(sum(status.regions, (region) => spilloverOf(region, model).waiting))} requests`,
    "regions healthy": `${status.regions.length - unhealthy} of ${status.regions.length}`,
  }).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)));
}

function regionRow(status, region, model) {
  const { slots, inFlight, ready, endpoints, share } = load(region, model);
  const overrides = overridesOf(status, region.name);
  return [
    regionLink(region.name),
    [badge(region.state), overrides.length ? h("small", {}, ` ${overrides.map(({ override, state }) => `${override.kind.replaceAll("_", " ")} (${state})`).join(", ")}`) : ""],
    meter(share, `${count(inFlight)} of ${count(slots)} slots`),
    `${count(ready)} of ${count(endpoints)}`,
    count(spilloverOf(region, model).waiting),
    rate(demandOf(region, model)),
    region.report_age_s === null ? "none" : `${duration(region.report_age_s)} ago`,
  ];
}

function modelRow(status, name) {
  const { slots, inFlight, ready, endpoints, waiting, demand, isShared } = modelLoad(status, name);
  const short = status.shortfalls.filter((each) => each.model === name);
  const now = short.filter((each) => each.lost === null), later = short.filter((each) => each.lost !== null);
  return [name,
    meter(slots ? inFlight / slots : 0, `${count(inFlight)} of ${count(slots)} slots${isShared ? ", some shared with other models" : ""}`),
    `${count(ready)} of ${count(endpoints)}`, count(waiting), rate(demand),
    [now.length ? h("span", { class: "bad" }, `${count(Math.ceil(Math.max(...now.map((each) => each.slots))))} slots now `) : "",
      later.length ? `${count(Math.ceil(Math.max(...later.map((each) => each.slots))))} slots if ${later.slice(0, 3).map((each) => each.lost).join(" or ")} fails` : "",
      short.length ? "" : "nothing"]];
}

function creditRows(status, model) {
  return status.regions.flatMap((region) => region.spillover.filter((row) => !model || row.model === model).map((row) => ({ region: region.name, ...row })))
    .sort((a, b) => b.waiting - a.waiting || b.held + b.granted - a.held - a.granted || b.headroom - a.headroom)
    .slice(0, MAX_ROWS)
    .map((row) => [regionLink(row.region), row.model, slotsOf(row.headroom), requests(row.granted), requests(row.held), requests(row.waiting)]);
}

const slotsOf = (value) => `${count(value)} ${value === 1 ? "slot" : "slots"}`;
const requests = (value) => `${count(value)} ${value === 1 ? "request" : "requests"}`;

function countryRows(clients) {
  const total = clients.reduce((sum, { perS }) => sum + perS, 0);
  const rows = clients.slice(0, MAX_COUNTRIES).map(({ country, perS }) =>
    [countryName(country) + (country && !COUNTRIES.has(country) ? " (not on the map)" : ""), rate(perS), percent(perS / total)]);
  const rest = clients.slice(MAX_COUNTRIES).reduce((sum, { perS }) => sum + perS, 0);
  return rest ? [...rows, [`${clients.length - MAX_COUNTRIES} more`, rate(rest), percent(rest / total)]] : rows;
}

export const regionLink = (name) => h("a", { href: `#/region/${encodeURIComponent(name)}` }, name);

export const badge = (state) =>
  h("span", { class: `badge ${state}`, title: STATE_HINTS[state] }, state);

export function meter(share, text) {
  return h("span", { class: "meter" },
    h("progress", { max: "1", value: Math.min(1, share), "aria-label": text }), ` ${percent(share)} `, h("small", {}, text));
}

export function eventList(events) {
  if (!events.length) return h("p", { class: "empty" }, "None.");
  return h("ol", { class: "events" }, events.map((event) =>
    h("li", {}, h("time", { datetime: new Date(event.at * 1000).toISOString() }, moment(event.at)), " ", describeEvent(event))));
}

function legend() {
  return h("ul", { class: "legend", "aria-label": "Colours of arcs" }, Object.keys(REASONS).filter((why) => why !== "home").map((why) =>
    h("li", { title: REASONS[why] }, h("i", { class: `swatch ${why}` }), why)),
    h("li", {}, h("i", { class: "dot" }), "clients"));
}
