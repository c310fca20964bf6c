// Back in time: a slider over the plans and events that are kept. The map shows the plan of that moment, and the states of
// regions and the overrides as its events and plans state them.

import { get } from "./api.js";
import { h, section, show, table, wide } from "./dom.js";
import { describeEvent } from "./events.js";
import { REASONS, emptiedRegions, reasonOf } from "./fleet.js";
import { duration, moment, percent, shortDigest } from "./format.js";
import { FleetMap, legend } from "./map.js";
import { regionLink } from "./alarms.js";
import { badge } from "./now.js";
import { pages } from "./region.js";

const MAX_PLANS = 300;
/** Events around a moment that are listed. */
const AROUND = 8;
/** Pause (ms) after the last movement of the slider before a plan is read. */
const SETTLE_MS = 120;

export class PastView {
  constructor() {
    this.title = "Past";
    this.map = new FleetMap((region) => (location.hash = `#/region/${encodeURIComponent(region)}`));
    this.plans = [];
    this.moments = [];
    this.slider = h("input", { type: "range", id: "when", min: "0", max: "0", value: "0", oninput: () => this.#moved() });
    this.caption = h("output", { for: "when" });
    this.detail = h("div", { class: "grid" });
    const step = (by, label, text) => h("button", { type: "button", "aria-label": label, onclick: () => this.#step(by) }, text);
    this.element = h("div", {},
      h("section", { class: "wide" }, h("h1", {}, "Past"),
        h("p", { class: "hint" }, "Every kept plan and event is a step of the slider; arrow keys move it. The width of an arc is the mean share over the origin's traffic classes."),
        h("div", { class: "bar" }, step(-1, "One step back", "◀"), h("label", { for: "when", class: "stretch" }, h("span", { class: "unseen" }, "Moment"), this.slider), step(1, "One step forward", "▶")),
        this.caption, this.map.element, legend()), this.detail);
  }

  update(status, events) {
    this.status = status;
    this.events = events;
  }

  async refresh() {
    if (!this.status) return;
    const isNew = !this.plans.length || this.read !== this.status.plan?.generation;
    if (isNew) {
      this.read = this.status.plan?.generation;
      this.plans = (await pages("/v1/plans", {}, MAX_PLANS)).reverse();
    } else if (this.moments.length && this.newestEvent === this.events[0]) return;
    this.newestEvent = this.events[0];
    const wasAtEnd = Number(this.slider.value) >= this.moments.length - 1, before = this.moments[Number(this.slider.value)];
    // The journal has each plan as an event too; here a plan is one step.
    this.moments = [...this.plans.map((plan) => ({ at: plan.made_at, plan })),
      ...this.events.filter((event) => event.kind !== "plan").map((event) => ({ at: event.at, event }))].sort((a, b) => a.at - b.at);
    this.slider.max = String(Math.max(0, this.moments.length - 1));
    const index = wasAtEnd ? -1 : this.moments.findIndex((each) => each.at >= before.at);
    this.slider.value = String(index < 0 ? this.moments.length - 1 : index);
    await this.#show();
  }

  #step(by) {
    this.slider.value = String(Number(this.slider.value) + by);
    this.#moved();
  }

  #moved() {
    this.#describe();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#show().catch((error) => show(this.caption, h("p", { class: "bad" }, error.message))), SETTLE_MS);
  }

  #describe() {
    const now = this.moments[Number(this.slider.value)];
    if (!now) return show(this.caption, "No plan and no event is kept.");
    const what = now.plan ? `plan ${now.plan.generation}, by ${now.plan.leader || "an earlier leader"}, policy ${shortDigest(now.plan.policy_digest)}, ${now.plan.changes} shares changed`
      : describeEvent(now.event);
    const text = `${moment(now.at)}, ${duration(Math.max(0, Date.now() / 1000 - now.at))} ago: ${what}`;
    this.slider.setAttribute("aria-valuetext", text);
    return show(this.caption, text);
  }

  async #show() {
    this.#describe();
    const index = Number(this.slider.value), now = this.moments[index];
    if (!now) return;
    const summary = this.plans.findLast((plan) => plan.made_at <= now.at) ?? this.plans[0];
    const plan = summary && (await get(`/v1/plans/${summary.generation}`));
    if (this.moments[Number(this.slider.value)] !== now) return;
    const states = statesAt(this.events, now.at);
    const flows = plan ? sharesOf(plan, emptiedRegions([...overridesIn(summary.circumstances), ...overridesAt(this.events, now.at)], [...states].filter(([, state]) => state === "failed").map(([name]) => name))) : [];
    // Load and demand of then are not kept.
    this.map.update(this.status.regions.map((region) =>
      ({ ...region, pools: [], demand: [], unready_count: 0, state: states.get(region.name) ?? "unknown" })), flows);
    const away = flows.filter((flow) => flow.origin !== flow.server).sort((a, b) => b.perS - a.perS);
    show(this.detail,
      section("What was not ordinary", "", h("ul", {}, (summary?.circumstances ?? []).map((each) => h("li", {}, each)),
        [...states].filter(([, state]) => state !== "healthy").map(([name, state]) => h("li", {}, regionLink(name), " ", badge(state)))),
      !summary?.circumstances.length && ![...states.values()].some((state) => state !== "healthy") && h("p", { class: "empty" }, "Nothing.")),
      section("Shares between regions", "", table("Shares between regions", ["from", "to", "mean share", "reason"],
        away.map((flow) => [flow.origin, flow.server, percent(flow.perS), REASONS[flow.why] ?? flow.why]), "Every region served its own clients.")),
      wide("Around this moment", "", h("ol", { class: "events" }, this.moments.slice(Math.max(0, index - AROUND), index + AROUND + 1).map((each) =>
        h("li", { "aria-current": each === now ? "step" : null }, h("time", { datetime: new Date(each.at * 1000).toISOString() }, moment(each.at)), " ",
          each.plan ? `plan ${each.plan.generation}: ${each.plan.changes} shares changed` : describeEvent(each.event))))));
  }
}

/** State of each region at a moment, as far as kept events tell: the one after the last change, else before the next. */
function statesAt(events, at) {
  const states = new Map();
  for (const { kind, at: when, data } of [...events].reverse()) {
    if (kind !== "region") continue;
    if (when <= at) states.set(data.region, data.after);
    else if (!states.has(data.region)) states.set(data.region, data.before);
  }
  return states;
}

/** Overrides that were in force when a plan was made, as its circumstances state them: "fail_over of eu-de by ada: reason". */
const overridesIn = (circumstances) => circumstances.map((each) => /^([a-z_]+) of (\S+) by /.exec(each)).filter(Boolean)
  .map(([, kind, region]) => ({ kind, region }));

/** Overrides of operators that were in force at a moment, as far as kept events tell. */
function overridesAt(events, at) {
  const found = new Map();
  for (const { kind, at: when, data } of [...events].reverse()) {
    if (kind !== "audit" || when > at) continue;
    if (data.action === "override.lift") found.delete(data.target);
    else if (data.action.startsWith("override.") && data.after?.region) found.set(data.target, data.after);
  }
  return [...found.values()].filter(({ expires_at: end }) => end == null || end > at);
}

/** Mean share by origin, server and reason; `perS` is that share here. */
function sharesOf(plan, emptied) {
  const found = new Map(), classes = new Map();
  for (const { origin, model, residency, arcs } of classesOf(plan)) {
    classes.set(origin, (classes.get(origin) ?? new Set()).add(`${model}\n${residency}`));
    for (const { server, share, why: stated } of arcs) {
      const why = reasonOf({ origin, why: stated }, emptied);
      const key = `${origin}\n${server}\n${why}`;
      const flow = found.get(key) ?? { origin, server, why, perS: 0 };
      flow.perS += share;
      found.set(key, flow);
    }
  }
  return [...found.values()].map((flow) => {
    const share = flow.perS / classes.get(flow.origin).size;
    return { ...flow, perS: share, text: percent(share) };
  });
}

function classesOf(plan) {
  return Object.entries(plan.slices).flatMap(([origin, slice]) => slice.classes.map((each) => ({ origin, ...each })));
}
