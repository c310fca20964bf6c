// One region: pools, endpoints, queue, objectives, demand, what comes from and goes to other regions, agents; drain and fail over.

import { get } from "./api.js";
import { actionButton, drainingEndpoint, emptying, mayAct, overrideTable, undraining } from "./actions.js";
import { countryName, placeName } from "./countries.js";
import { h, section, show, table, wide } from "./dom.js";
import { concerns, latestEvents } from "./events.js";
import { REASONS, assignedTo, demandOf, flows, load, overridesOf, spilloverOf } from "./fleet.js";
import { count, duration, moment, percent, rate, shortDigest } from "./format.js";
import { regionLink, target } from "./alarms.js";
import { History, LOAD, SHARE, spark } from "./history.js";
import { jobs } from "./jobs.js";
import { attainment, badge, meter } from "./now.js";

/** Longest list of endpoints that the heat map shows. */
const MAX_ENDPOINTS = 1000;
/** A certificate that expires within so many seconds is marked. */
const SOON_S = 7 * 86_400;

/** What fits into an endpoint, as far as its engine reports it. */
const room = ([, , context, kv, memory]) => [context && `context ${count(context)} tokens`, kv && `KV cache ${count(kv)} tokens`,
  memory && `${percent(memory)} of GPU memory`].filter(Boolean).join(", ");

export class RegionView {
  constructor(name, caller) {
    this.name = this.title = name;
    this.state = h("div");
    this.history = new History(name);
    this.cells = h("div", { class: "heat", role: "list", "aria-label": "Endpoints" }, h("p", { class: "empty", role: "listitem" }, "Loading…"));
    this.troubled = h("div");
    this.differing = h("div");
    this.agents = h("div", {}, h("p", { class: "empty" }, "Loading…"));
    this.live = h("div", { class: "grid" });
    this.actions = mayAct(caller) && h("p", { class: "buttons" },
      actionButton("Drain…", () => emptying("drain", name, caller)), actionButton("Fail over…", () => emptying("fail_over", name, caller)),
      actionButton("Undrain…", () => undraining(name, () => this.status)),
      actionButton("Drain an endpoint…", () => drainingEndpoint(name, () => this.endpoints, caller)));
    this.endpoints = [];
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, name), this.state, this.actions),
      section("Endpoints", "One square each, darker the more of its slots are busy; dashed where it is not ready, with ≠ where it serves another version than policy or its siblings.", this.cells, this.troubled, this.differing),
      section("Agents", "Certificates, releases and policies that differ from the control plane's are marked.", this.agents), this.live);
  }

  update(status, events) {
    this.status = status;
    const region = status.regions.find((each) => each.name === this.name);
    if (!region) return show(this.state, h("p", {}, "The policy has no region of this name."));
    const overrides = overridesOf(status, this.name), { slots, inFlight, share } = load(region), { waiting } = spilloverOf(region);
    show(this.state, h("p", { class: "lead" }, badge(region.state), ` ${placeName(region)}`,
      region.state_age_s === null ? "" : `, for ${duration(region.state_age_s)}`),
    h("dl", { class: "totals" }, [
      ["demand of its clients", rate(demandOf(region)), "demand", rate],
      ["load", `${percent(share)} of ${count(slots)} slots`, "load", LOAD],
      ["waiting", `${count(waiting)} requests`, "waiting", count],
    ].map(([term, value, measure, text]) => h("div", {}, h("dt", {}, term, spark(term, this.history.values(this.name, measure), text)), h("dd", {}, value)))),
    overrides.length > 0 && overrideTable(overrides));
    const all = flows(status);
    const part = (rows, other) => rows.sort((a, b) => b.perS - a.perS)
      .map((flow) => [flow[other] === this.name ? "itself" : regionLink(flow[other]), rate(flow.perS), h("span", { title: REASONS[flow.why] }, flow.why), [...flow.models].join(", ")]);
    const ofModel = (model) => spilloverOf(region, model);
    return show(this.live,
      wide("Pools", "", table("Pools", ["model", "load", "last 15 minutes", "ready endpoints", "waiting", "time per request", "shares slots with"], region.pools.map((pool) => [
        pool.model, meter(pool.slots ? pool.in_flight / pool.slots : 0, `${count(pool.in_flight)} of ${count(pool.slots)} slots`),
        spark(`Load of ${pool.model}`, this.history.values(this.name, "load", pool.model), LOAD),
        `${count(pool.ready)} of ${count(pool.endpoints)}`, `${count(ofModel(pool.model).waiting)} requests`, duration(pool.service_s), pool.shares_slots_with.join(", ") || "no model"]))),
      section("Service objectives", "Over the last five minutes, of requests that its clients sent.", table("Service objectives", ["model", "target", "attained", "last 15 minutes", "requests"],
        region.objectives.map((each) => [each.model, target(each), attainment(each),
          spark(`${each.model}: share that attained it`, this.history.values(this.name, `attained_${each.measure}`, each.model), SHARE), count(each.answers)]), "The policy sets no objective.")),
      section("Headroom and spill credits", "", table("Spill credits", ["model", "headroom", "granted to others", "held elsewhere"],
        region.spillover.map((row) => [row.model, `${count(row.headroom)} slots`, `${count(row.granted)} requests`, `${count(row.held)} requests`]))),
      section("Its clients are served by", "", table("Served by", ["region", "traffic", "reason", "models"],
        part(all.filter((flow) => flow.origin === this.name && flow.perS > 0), "server"), "No request reaches it.")),
      section("It serves the clients of", "", table("Serves", ["region", "traffic", "reason", "models"],
        part(all.filter((flow) => flow.server === this.name && flow.perS > 0), "origin"), "It serves no request.")),
      section("Demand of its clients", "", table("Demand", ["model", "residency class", "demand"],
        region.demand.map((each) => [each.model, each.residency, rate(each.requests_per_s)])),
      table("Demand by country", ["country", "demand"], region.countries.slice(0, 10).map((each) => [countryName(each.country), rate(each.requests_per_s)]), "")),
      jobs([region]),
      latestEvents(events.filter((event) => concerns(event, this.name))));
  }

  async refresh() {
    await Promise.all([this.#endpoints(), this.#agents(), this.history.refresh()]);
  }

  async #endpoints() {
    const found = (this.endpoints = await pages("/v1/endpoints", { region: this.name }, MAX_ENDPOINTS));
    show(this.cells, found.map((endpoint) => {
      const share = endpoint.slots ? endpoint.in_flight / endpoint.slots : 0;
      const text = [`${endpoint.name}: ${endpoint.state}`, endpoint.reason, `${count(endpoint.in_flight)} of ${count(endpoint.slots)} slots`, endpoint.models.join(", "),
        endpoint.zone, endpoint.accelerator, endpoint.engine_version && `engine ${endpoint.engine_version}`, endpoint.served.map(room).find(Boolean), endpoint.skew && `differs: ${endpoint.skew}`].filter(Boolean).join(", ");
      return h("span", { class: `cell load-${Math.min(10, Math.round(share * 10))} ${endpoint.state}`, role: "listitem", title: text, "aria-label": text },
        endpoint.state === "ready" ? percent(share) : endpoint.state, endpoint.skew && " ≠");
    }), !found.length && h("p", { class: "empty", role: "listitem" }, "No endpoint is reported."));
    const troubled = found.filter((endpoint) => endpoint.state !== "ready");
    const differing = found.filter((endpoint) => endpoint.skew);
    show(this.differing, differing.length > 0 && table("Endpoints that serve something else", ["endpoint", "engine", "difference"],
      differing.slice(0, 50).map((endpoint) => [endpoint.name, endpoint.engine_version || "unknown", endpoint.skew])));
    show(this.troubled, troubled.length > 0 && table("Endpoints that are not ready", ["endpoint", "state", "reason", "load", "age"], troubled.slice(0, 50).map((endpoint) => [
      endpoint.name, h("span", { class: `badge ${endpoint.state}` }, endpoint.state), endpoint.reason, `${count(endpoint.in_flight)} of ${count(endpoint.slots)} slots`, `${duration(endpoint.age_s)} ago`])));
  }

  async #agents() {
    const found = await pages("/v1/agents", { region: this.name }, 200), { status } = this;
    const differs = (isDifferent, text) => h("span", { class: isDifferent ? "bad" : "" }, text, isDifferent ? " ≠" : "");
    show(this.agents, table("Agents", ["agent", "last report", "release", "certificate expires", "policy", "plan", "rejected"], found.map((agent) => [agent.name,
      agent.report_age_s === null ? "none" : `${duration(agent.report_age_s)} ago`,
      differs(status && agent.release !== status.release, agent.release || "unknown"),
      expiry(agent.certificate_expires_at),
      differs(status && agent.policy_digest && assignedTo(status, this.name) !== agent.policy_digest, shortDigest(agent.policy_digest)),
      count(agent.plan_generation), [agent.refused_plan || agent.refused_digest, ...agent.rejected_files].filter(Boolean).join("; ") || "nothing"]), "No agent is registered or reports."));
  }
}

function expiry(at) {
  if (!at) return "unknown";
  const leftS = at - Date.now() / 1000;
  return h("span", { class: leftS < SOON_S ? "bad" : "", title: moment(at) }, leftS < 0 ? `expired ${duration(-leftS)} ago` : `${leftS < SOON_S ? "soon: " : ""}in ${duration(leftS)}`);
}

/** All entries of a list, page by page, up to a limit. */
export async function pages(path, query, max) {
  const found = [];
  for (let cursor = null; found.length < max; ) {
    const page = await get(`${path}?${new URLSearchParams({ ...query, limit: "200", ...(cursor ? { cursor } : {}) })}`);
    found.push(...page.items);
    cursor = page.next_cursor;
    if (!cursor) break;
  }
  return found;
}
