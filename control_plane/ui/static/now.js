// What the fleet does now: map, regions, objectives, events.

import { h, section, table } from "./dom.js";
import { describeEvent } from "./events.js";
import { REASONS, demandOf, flows, load, models, overridesOf } from "./fleet.js";
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

export class NowView {
  constructor() {
    this.map = new FleetMap((region) => (location.hash = `#/region/${encodeURIComponent(region)}`));
    this.model = "";
    this.choice = h("select", { id: "model", onchange: () => ((this.model = this.choice.value), this.#draw()) });
    this.tables = h("div");
    this.recent = h("div");
    this.element = h("div", {},
      h("section", { class: "wide" },
        h("div", { class: "bar" },
          h("h1", {}, "Now"), h("label", { for: "model" }, "Model ", this.choice), legend()),
        this.map.svg),
      this.tables, this.recent);
  }

  update(status, events) {
    this.status = status;
    const names = ["", ...models(status)];
    if (names.join("\n") !== this.names) {
      this.names = names.join("\n");
      this.choice.replaceChildren(...names.map((name) => h("option", { value: name }, name || "all models")));
      this.choice.value = names.includes(this.model) ? this.model : "";
      this.model = this.choice.value;
    }
    this.#draw();
    this.recent.replaceChildren(section("Latest events", "", eventList(events.slice(0, 12))));
  }

  #draw() {
    const { status, model } = this;
    if (!status) return;
    const found = flows(status, model);
    this.map.update(status.regions, found, model);
    const away = found.filter((flow) => flow.origin !== flow.server && flow.perS > 0).sort((a, b) => b.perS - a.perS);
    this.tables.replaceChildren(
      section("Regions", "", table("Regions", ["region", "state", "load", "ready endpoints", "demand", "last report"],
        status.regions.map((region) => regionRow(status, region, model)))),
      section("Between regions", "Demand times the plan's share.", table("Flows between regions",
        ["from", "to", "traffic", "reason", "models"],
        away.slice(0, 50).map((flow) => [flow.origin, flow.server, rate(flow.perS), REASONS[flow.why] ?? flow.why, [...flow.models].join(", ")]),
        "Every region serves its own clients.")),
      section("Service objectives", "", table("Service objectives", ["model", "region", "target", "attained"],
        status.regions.flatMap((region) => region.objectives.map((each) => [
          each.model, region.name, `${percent(each.share)} within ${duration(each.first_byte_s)}`,
          each.attained === null ? "no traffic" : h("span", { class: each.is_met ? "good" : "bad" }, `${each.is_met ? "✓" : "✗"} ${percent(each.attained)}`),
        ])), "The policy sets no objective.")),
    );
  }
}

function regionRow(status, region, model) {
  const { slots, inFlight, ready, endpoints, share } = load(region, model);
  const overrides = overridesOf(status, region.name);
  return [
    h("a", { href: `#/region/${encodeURIComponent(region.name)}` }, region.name),
    [badge(region.state), overrides.length ? h("small", {}, ` ${overrides.map(({ override }) => override.kind).join(", ")}`) : ""],
    meter(share, `${count(inFlight)} of ${count(slots)} slots`),
    `${count(ready)} of ${count(endpoints)}`,
    rate(demandOf(region, model)),
    region.report_age_s === null ? "none" : `${duration(region.report_age_s)} ago`,
  ];
}

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
    h("li", {}, h("i", { class: `swatch ${why}` }), why)));
}
