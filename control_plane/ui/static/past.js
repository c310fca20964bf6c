// Back in time: the plans that are kept, on the map.

import { get } from "./api.js";
import { h, section, table } from "./dom.js";
import { REASONS } from "./fleet.js";
import { moment, percent, shortDigest } from "./format.js";
import { FleetMap } from "./map.js";

const MAX_PLANS = 300;

export class PastView {
  constructor() {
    this.map = new FleetMap(() => {});
    this.plans = [];
    this.slider = h("input", { type: "range", id: "when", min: "0", max: "0", value: "0", oninput: () => this.#show() });
    this.caption = h("output", { for: "when" });
    this.arcs = h("div");
    this.element = h("div", {},
      h("section", { class: "wide" }, h("h1", {}, "Past"), h("p", { class: "hint" }, "Shares of the plans that are kept; the width of an arc is the mean share over its traffic classes."),
        h("label", { for: "when" }, "Plan"), this.slider, this.caption, this.map.svg),
      section("Shares between regions", "", this.arcs));
  }

  async update(status) {
    this.regions = status.regions;
    if (this.plans.length && this.generation === status.plan?.generation) return;
    this.generation = status.plan?.generation;
    const found = [];
    for (let cursor = null; found.length < MAX_PLANS; ) {
      const page = await get(`/v1/plans?${new URLSearchParams({ limit: "100", ...(cursor ? { cursor } : {}) })}`);
      found.push(...page.items);
      cursor = page.next_cursor;
      if (!cursor) break;
    }
    const atEnd = Number(this.slider.value) >= this.plans.length - 1;
    this.plans = found.reverse();
    this.slider.max = String(Math.max(0, this.plans.length - 1));
    if (atEnd) this.slider.value = this.slider.max;
    await this.#show();
  }

  async #show() {
    const summary = this.plans[Number(this.slider.value)];
    if (!summary) return this.caption.replaceChildren("No plan is kept.");
    this.caption.replaceChildren(`${summary.generation}, ${moment(summary.made_at)}, by ${summary.leader || "an earlier leader"}, policy ${shortDigest(summary.policy_digest)}` +
      (summary.circumstances.length ? `: ${summary.circumstances.join("; ")}` : ""));
    const plan = await get(`/v1/plans/${summary.generation}`);
    if (this.plans[Number(this.slider.value)] !== summary) return;
    const flows = sharesOf(plan);
    // The load and the state of then are not kept.
    this.map.update(this.regions.map((region) => ({ ...region, pools: [], demand: [], state: "unknown" })), flows);
    const away = flows.filter((flow) => flow.origin !== flow.server).sort((a, b) => b.perS - a.perS);
    this.arcs.replaceChildren(table("Shares between regions", ["from", "to", "mean share", "reason"],
      away.slice(0, 50).map((flow) => [flow.origin, flow.server, percent(flow.perS), REASONS[flow.why] ?? flow.why]), "Every region served its own clients."));
  }
}

/** Mean share by origin, server and reason; `perS` is that share here. */
function sharesOf(plan) {
  const found = new Map(), classes = new Map();
  for (const { origin, model, residency, arcs } of classesOf(plan)) {
    classes.set(origin, (classes.get(origin) ?? new Set()).add(`${model}\n${residency}`));
    for (const { server, share, why } of arcs) {
      const key = `${origin}\n${server}\n${why}`;
      const flow = found.get(key) ?? { origin, server, why, perS: 0 };
      flow.perS += share;
      found.set(key, flow);
    }
  }
  return [...found.values()].map((flow) => ({ ...flow, perS: flow.perS / classes.get(flow.origin).size }));
}

function classesOf(plan) {
  return Object.entries(plan.slices).flatMap(([origin, slice]) => slice.classes.map((each) => ({ origin, ...each })));
}
