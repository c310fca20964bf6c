// What the fleet does now: alarms, map, regions, models, objectives, spillover, endpoints in trouble, clients, events.

import { alarmList, objectives, regionLink, target } from "./alarms.js";
import { COUNTRIES, countryName } from "./countries.js";
import { h, section, show, table, wide } from "./dom.js";
import { eventList, latestEvents } from "./events.js";
import { REASONS, countries, demandOf, flows, isAway, load, modelLoad, models, overridesOf, spilloverOf } from "./fleet.js";
import { count, duration, percent, rate } from "./format.js";
import { History, LOAD, SHARE, spark } from "./history.js";
import { jobs } from "./jobs.js";
import { FleetMap, legend } from "./map.js";
import { SEVERITY } from "./map_layout.js";

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
    this.region = "";
    this.focus = h("select", { id: "focus", onchange: () => ((this.region = this.focus.value), this.#draw()) });
    this.showsClients = h("input", { type: "checkbox", checked: true, onchange: () => this.#draw() });
    this.history = new History();
    this.alarms = h("div");
    this.totals = h("dl", { class: "totals" });
    this.tables = h("div", { class: "grid" });
    this.element = h("div", {},
      h("section", { class: "wide" }, h("h1", {}, "Now"), this.alarms, this.totals),
      h("section", { class: "wide" },
        h("div", { class: "bar" }, h("h2", {}, "Map"), h("label", {}, "Model ", this.choice), h("label", {}, "Arcs of ", this.focus),
          h("label", { class: "check" }, this.showsClients, "clients by country")),
        this.map.element, legend()),
      this.tables);
  }

  update(status, events) {
    this.status = status;
    this.events = events;
    this.model = offer(this.choice, models(status), "all models", this.model);
    this.region = offer(this.focus, status.regions.map(({ name }) => name), "all regions", this.region);
    this.#draw();
  }

  async refresh() {
    if (await this.history.refresh()) this.#draw();
  }

  #draw() {
    const { status, model } = this;
    if (!status) return;
    const found = flows(status, model), clients = countries(status);
    this.map.update(status.regions, found, { model, focus: this.region, clients: this.showsClients.checked ? clients : [] });
    show(this.alarms, alarmList(status));
    show(this.totals, totals(status, found, model, this.history));
    const away = found.filter((flow) => flow.origin !== flow.server && flow.perS > 0).sort((a, b) => b.perS - a.perS);
    const regions = [...status.regions].sort((a, b) => SEVERITY[b.state] - SEVERITY[a.state] || load(b).slots - load(a).slots);
    const wanted = objectives(status, model);
    show(this.tables,
      wide("Regions", "Those that are not healthy first, then the largest.", table("Regions", ["region", "state", "load", "last 15 minutes", "ready endpoints", "waiting", "demand", "last report"],
        regions.map((region) => regionRow(status, region, model, this.history)))),
      wide("Models", "Load against capacity over all regions. “Missing” is capacity that lacks now, or after the loss of one region.",
        table("Models", ["model", "load", "last 15 minutes", "ready endpoints", "waiting", "demand", "missing"],
          models(status).filter((name) => !model || name === model).map((name) => modelRow(status, name, this.history)))),
      wide("Service objectives", "Over the last five minutes, by the region that clients reach. Those that are missed first.", table("Service objectives", ["model", "region", "target", "attained", "last 15 minutes", "requests"],
        wanted.map((each) => [each.model, regionLink(each.region), target(each), attainment(each),
          spark(`${each.model} at ${each.region}: share that attained it`, this.history.values(each.region, `attained_${each.measure}`, each.model), SHARE), count(each.answers)]), "The policy sets no objective.")),
      section("Between regions", "Demand times the plan's share. “home” leads to the nearest region that has the model.", table("Flows between regions",
        ["from", "to", "traffic", "reason", "models"],
        away.slice(0, MAX_ROWS).map((flow) => [flow.origin, flow.server, rate(flow.perS), h("span", { title: REASONS[flow.why] }, flow.why), [...flow.models].join(", ")]),
        "Every region serves its own clients.")),
      section("Headroom and spill credits", "Headroom: free slots that a region grants credits for, one request each. A region spills beyond the plan only on credits that it holds elsewhere.",
        table("Spill credits", ["region", "model", "headroom", "granted", "held elsewhere", "waiting"], creditRows(status, model),
          "No agent reports any.")),
      section("Endpoints that receive no requests", "", table("Endpoints without requests", ["region", "endpoint", "state", "reason"],
        status.regions.flatMap((region) => [
          ...region.unready.map((each) => [regionLink(region.name), each.name, h("span", { class: `badge ${each.state}` }, each.state), each.reason]),
          ...(region.unready_count > region.unready.length ? [[regionLink(region.name), `${region.unready_count - region.unready.length} more`, "", ""]] : []),
        ]).slice(0, MAX_ROWS), "None.")),
      jobs(status.regions),
      section("Clients by country", "Demand of all models.", table("Clients by country", ["country", "demand", "share"], countryRows(clients),
        "No request yet.")),
      latestEvents(this.events));
  }
}

/** Fills a select with names, unless it has them; returns the one that is chosen. */
function offer(select, names, all, chosen) {
  if (select.options.length !== names.length + 1 || names.some((name, index) => select.options[index + 1].value !== name)) {
    select.replaceChildren(h("option", { value: "" }, all), ...names.map((name) => h("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }
  return select.value;
}

function totals(status, found, model, history) {
  const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);
  const loads = status.regions.map((region) => load(region, model));
  const slots = sum(loads, (each) => each.slots), busy = sum(loads, (each) => each.inFlight);
  const demand = sum(found, (flow) => flow.perS), away = sum(found.filter(isAway), (flow) => flow.perS);
  const healthy = status.regions.filter((region) => region.state === "healthy").length;
  return [
    ["demand", rate(demand), spark("Demand of the fleet", history.values("", "demand", model), rate)],
    ["load", `${slots ? percent(busy / slots) : "none"} of ${count(slots)} slots`, spark("Load of the fleet", history.values("", "load", model), LOAD)],
    ["served away from home", demand ? percent(away / demand) : "none"],
    ["waiting", `${count(sum(status.regions, (region) => spilloverOf(region, model).waiting))} requests`],
    ["regions healthy", `${healthy} of ${status.regions.length}`],
  ].map(([term, value, drawn]) => h("div", {}, h("dt", {}, term, drawn), h("dd", {}, value)));
}

function regionRow(status, region, model, history) {
  const { slots, inFlight, ready, endpoints, share } = load(region, model);
  const overrides = overridesOf(status, region.name);
  return [
    regionLink(region.name),
    [badge(region.state), overrides.length ? h("small", {}, ` ${overrides.map(({ override, state }) => `${override.kind.replaceAll("_", " ")} (${state})`).join(", ")}`) : ""],
    meter(share, `${count(inFlight)} of ${count(slots)} slots`),
    spark(`Load of ${region.name}`, history.values(region.name, "load"), LOAD),
    `${count(ready)} of ${count(endpoints)}`,
    count(spilloverOf(region, model).waiting),
    rate(demandOf(region, model)),
    region.report_age_s === null ? "none" : `${duration(region.report_age_s)} ago`,
  ];
}

function modelRow(status, name, history) {
  const { slots, inFlight, ready, endpoints, waiting, demand, isShared } = modelLoad(status, name);
  const short = status.shortfalls.filter((each) => each.model === name);
  const now = short.filter((each) => each.lost === null), later = short.filter((each) => each.lost !== null);
  return [name,
    meter(slots ? inFlight / slots : 0, `${count(inFlight)} of ${count(slots)} slots${isShared ? ", some shared with other models" : ""}`),
    spark(`Load of ${name}`, history.values("", "load", name), LOAD),
    `${count(ready)} of ${count(endpoints)}`, count(waiting), rate(demand),
    [now.length ? h("span", { class: "bad" }, `${count(Math.ceil(Math.max(...now.map((each) => each.slots))))} slots now `) : "",
      later.length ? `${count(Math.ceil(Math.max(...later.map((each) => each.slots))))} slots if ${later.slice(0, 3).map((each) => each.lost).join(" or ")} fails` : "",
      short.length ? "" : "nothing"]];
}

/** Whether an objective is met, in words, with the attained share. */
export const attainment = ({ is_met: isMet, attained }) => attained === null ? "no traffic"
  : h("span", { class: isMet ? "good" : "bad" }, `${isMet ? "✓ met" : "✗ missed"}, ${percent(attained)}`);

function creditRows(status, model) {
  return status.regions.flatMap((region) => region.spillover.filter((row) => !model || row.model === model).map((row) => ({ region: region.name, ...row })))
    .sort((a, b) => b.waiting - a.waiting || b.held + b.granted - a.held - a.granted || b.headroom - a.headroom)
    .slice(0, MAX_ROWS)
    .map((row) => [regionLink(row.region), row.model, count(row.headroom), count(row.granted), count(row.held), count(row.waiting)]);
}

function countryRows(clients) {
  const total = clients.reduce((sum, { perS }) => sum + perS, 0);
  const rows = clients.slice(0, MAX_COUNTRIES).map(({ country, perS }) =>
    [countryName(country) + (country && !COUNTRIES.has(country) ? " (not on the map)" : ""), rate(perS), percent(perS / total)]);
  const rest = clients.slice(MAX_COUNTRIES).reduce((sum, { perS }) => sum + perS, 0);
  return rest ? [...rows, [`${clients.length - MAX_COUNTRIES} more`, rate(rest), percent(rest / total)]] : rows;
}

export const badge = (state) =>
  h("span", { class: `badge ${state}`, title: STATE_HINTS[state] }, state);

export function meter(share, text) {
  return h("span", { class: "meter" },
    h("progress", { max: "1", value: Math.min(1, share), "aria-label": text }), ` ${percent(share)} `, h("small", {}, text));
}
