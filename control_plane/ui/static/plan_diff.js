// What differs between two of the kept plans, on the map.

import { ApiError, get } from "./api.js";
import { h, section, show, table } from "./dom.js";
import { moment, percent } from "./format.js";
import { FleetMap } from "./map.js";
import { pages } from "./region.js";

const MAX_PLANS = 300;
const MAX_ROWS = 50;

export class PlanDiff {
  constructor() {
    this.map = new FleetMap((region) => (location.hash = `#/region/${encodeURIComponent(region)}`));
    this.plans = [];
    /** Selects that follow the newest plans, until an operator chooses. */
    this.following = new Set();
    const choice = (label) => {
      const select = h("select", { "aria-label": label, onchange: () => (this.following.delete(select), this.#compare()) });
      this.following.add(select);
      return select;
    };
    [this.before, this.after] = [choice("From plan"), choice("To plan")];
    this.result = h("div", { "aria-live": "polite" }, h("p", { class: "empty" }, "Loading…"));
    this.element = section("Difference of two plans", "Arcs whose share of the origin's traffic class grew or shrank.",
      h("p", { class: "action" }, h("span", {}, "From ", this.before), h("span", {}, "to ", this.after),
        h("span", { class: "legend" }, h("span", {}, h("i", { class: "swatch more" }), "more"), h("span", {}, h("i", { class: "swatch less" }), "less"))),
      this.map.element, this.result);
  }

  update(status) {
    this.regions = status.regions;
    this.generation = status.plan?.generation;
  }

  async refresh() {
    if (!this.regions || (this.plans.length && this.read === this.generation)) return;
    this.read = this.generation;
    this.plans = await pages("/v1/plans", {}, MAX_PLANS);
    for (const [select, first] of [[this.before, 1], [this.after, 0]]) {
      const chosen = select.value;
      select.replaceChildren(...this.plans.map((plan) => h("option", { value: plan.generation },
        `plan ${plan.generation}, ${moment(plan.made_at)}, ${plan.changes} changes`)));
      select.selectedIndex = Math.min(first, this.plans.length - 1);
      if (!this.following.has(select) && this.plans.some((plan) => String(plan.generation) === chosen)) select.value = chosen;
    }
    await this.#compare();
  }

  async #compare() {
    if (!this.before.value) return show(this.result, h("p", { class: "empty" }, "No plan is kept."));
    try {
      const { changes } = await get(`/v1/plans/diff?${new URLSearchParams({ before: this.before.value, after: this.after.value })}`);
      this.map.update(this.regions, changes.filter((change) => change.origin !== change.server && !isEnd(change)).map(flow));
      return show(this.result, table("Changed shares", ["from", "to", "model", "residency class", "share before", "share after", "reason"],
        changes.slice(0, MAX_ROWS).map((change) => [change.origin, change.server, change.model, change.residency, percent(change.before), isEnd(change) ? "no demand" : percent(change.after),
          isEnd(change) ? change.detail : [change.why ?? "removed", change.detail].filter(Boolean).join(": ")]), "The plans have the same shares."),
      changes.length > MAX_ROWS && h("p", { class: "hint" }, `${changes.length - MAX_ROWS} smaller changes are not shown.`));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return show(this.result, h("p", { class: "bad" }, error.message));
    }
  }
}

/** Whether no share moved, but the demand of the traffic class ended. */
const isEnd = ({ why, detail }) => why === null && detail !== "";

/** A change as the map draws it: the width is the difference. */
function flow({ origin, server, model, before, after }) {
  return { origin, server, why: after > before ? "more" : "less", perS: Math.abs(after - before), text: `${model}: ${percent(before)} → ${percent(after)}` };
}
