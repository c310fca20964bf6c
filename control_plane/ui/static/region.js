// One region: pools, endpoints, demand, what comes from and goes to other regions, agents; drain and undrain.

import { get } from "./api.js";
import { drainForm, undrainForm } from "./actions.js";
import { h, section, table } from "./dom.js";
import { concerns } from "./events.js";
import { REASONS, flows, overridesOf } from "./fleet.js";
import { count, duration, percent, rate, shortDigest } from "./format.js";
import { badge, eventList, meter } from "./now.js";

/** Longest list of endpoints that the heat map shows. */
const MAX_ENDPOINTS = 1000;

export class RegionView {
  constructor(name, caller) {
    this.name = name;
    this.title = h("h1", {}, name);
    this.state = h("p", { class: "lead" });
    this.cells = h("div", { class: "heat", role: "list", "aria-label": "Endpoints" });
    this.live = h("div");
    this.actions = h("div");
    this.element = h("div", {}, h("section", { class: "wide" }, this.title, this.state, this.actions),
      section("Endpoints", "One square each, darker the more of its slots are busy.", this.cells), this.live);
    if (caller.role !== "viewer") this.actions.append(drainForm(name), undrainForm(name));
  }

  async update(status, events) {
    const region = status.regions.find((each) => each.name === this.name);
    if (!region) {
      this.state.textContent = "The policy has no region of this name.";
      return;
    }
    const overrides = overridesOf(status, this.name);
    this.state.replaceChildren(badge(region.state), ` ${region.city}, ${region.country}`,
      region.state_age_s === null ? "" : `, for ${duration(region.state_age_s)}`,
      ...overrides.map(({ override, ends_in_s: endsInS }) =>
        h("span", {}, ` · ${override.kind} by ${override.author}: “${override.reason}”, ${endsInS === null ? "until lifted" : `${duration(endsInS)} left`}`)));
    const all = flows(status);
    const part = (rows, other) => rows.sort((a, b) => b.perS - a.perS)
      .map((flow) => [flow[other], rate(flow.perS), REASONS[flow.why] ?? flow.why, [...flow.models].join(", ")]);
    this.live.replaceChildren(
      section("Pools", "", table("Pools", ["model", "load", "ready endpoints", "time per request"], region.pools.map((pool) => [
        pool.model, meter(pool.slots ? pool.in_flight / pool.slots : 0, `${count(pool.in_flight)} of ${count(pool.slots)} slots`),
        `${count(pool.ready)} of ${count(pool.endpoints)}`, duration(pool.service_s)]))),
      section("Demand of its clients", "", table("Demand", ["model", "residency class", "demand"],
        region.demand.map((each) => [each.model, each.residency, rate(each.requests_per_s)]))),
      section("Its clients are served by", "", table("Served by", ["region", "traffic", "reason", "models"],
        part(all.filter((flow) => flow.origin === this.name), "server"))),
      section("It serves the clients of", "", table("Serves", ["region", "traffic", "reason", "models"],
        part(all.filter((flow) => flow.server === this.name), "origin"))),
      section("Agents", "", table("Agents", ["agent", "last report", "policy", "plan", "rejected"],
        status.agents.filter((agent) => agent.region === this.name).map((agent) => [agent.name,
          agent.report_age_s === null ? "none" : `${duration(agent.report_age_s)} ago`,
          h("span", { class: agent.policy_digest && status.policy.digest !== agent.policy_digest ? "bad" : "" }, shortDigest(agent.policy_digest)),
          count(agent.plan_generation), agent.refused_plan || agent.refused_digest || "nothing"]))),
      section("Latest events", "", eventList(events.filter((event) => concerns(event, this.name)).slice(0, 12))));
    await this.#endpoints();
  }

  async #endpoints() {
    const found = [];
    for (let cursor = null; found.length < MAX_ENDPOINTS; ) {
      const query = new URLSearchParams({ region: this.name, limit: "200", ...(cursor ? { cursor } : {}) });
      const page = await get(`/v1/endpoints?${query}`);
      found.push(...page.items);
      cursor = page.next_cursor;
      if (!cursor) break;
    }
    this.cells.replaceChildren(...found.map((endpoint) => {
      const share = endpoint.slots ? endpoint.in_flight / endpoint.slots : 0;
      const text = `${endpoint.name}: ${endpoint.state}, ${count(endpoint.in_flight)} of ${count(endpoint.slots)} slots, ${endpoint.models.join(", ")}` +
        (endpoint.zone ? `, ${endpoint.zone}` : "") + (endpoint.accelerator ? `, ${endpoint.accelerator}` : "");
      return h("span", { class: `cell load-${Math.min(10, Math.round(share * 10))} ${endpoint.state}`, role: "listitem", title: text, "aria-label": text },
        endpoint.state === "ready" ? percent(share) : endpoint.state);
    }));
    if (!found.length) this.cells.replaceChildren(h("p", { class: "empty", role: "listitem" }, "No endpoint is reported."));
  }
}
