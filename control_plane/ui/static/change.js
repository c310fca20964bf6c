// What changes: the rollout, overrides and maintenance windows, the audit trail.

import { ApiError, get } from "./api.js";
import { audit, freezeForm, liftButton, rolloutButtons } from "./actions.js";
import { h, section, table } from "./dom.js";
import { duration, moment, percent, shortDigest } from "./format.js";

export class ChangeView {
  constructor(caller) {
    this.acts = caller.role !== "viewer";
    this.line = h("p", { class: "outcome", role: "status" });
    this.rollout = h("div");
    this.overrides = h("div");
    this.trail = h("div");
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, "Change"), this.line,
      this.acts && freezeForm()),
      section("Rollout", "", this.rollout), section("Overrides and maintenance windows", "", this.overrides),
      section("Audit trail", "The latest 50 changes, newest first.", this.trail));
  }

  async update(status) {
    this.overrides.replaceChildren(table("Overrides", ["kind", "region", "author", "reason", "phase", "time left", ""],
      status.overrides.map((each) => [each.override.kind, each.override.region ?? "all", each.override.author, each.override.reason,
        each.phase, each.ends_in_s === null ? "until lifted" : duration(each.ends_in_s),
        this.acts && !each.by_policy ? liftButton(each, this.line) : ""])));
    await Promise.all([this.#rollout(), this.#audit()]);
  }

  async #rollout() {
    const found = await get("/v1/rollouts/current").catch((error) => {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    });
    if (found === null) return this.rollout.replaceChildren(h("p", { class: "empty" }, "No policy has been rolled out yet."));
    const { rollout, agents } = found;
    this.rollout.replaceChildren(
      h("dl", {}, Object.entries({
        Phase: `${rollout.phase}, since ${moment(rollout.since)}`,
        Reason: rollout.why,
        Policy: `${shortDigest(rollout.candidate)} instead of ${shortDigest(rollout.stable)}`,
        Commit: rollout.provenance ? `${rollout.provenance.commit.slice(0, 12)}: ${rollout.provenance.subject}` : "from a folder",
        "Canary regions": rollout.canary.join(", ") || "none",
        "Demand that moves": rollout.moved_share === null ? "not compared" : percent(rollout.moved_share),
      }).flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
      this.acts ? h("p", { class: "buttons" }, rolloutButtons(this.line)) : "",
      table("Agents", ["region", "agent", "policy assigned", "policy in force", "last report", "rejected"], agents.map((agent) =>
        [agent.region, agent.agent, shortDigest(agent.assigned),
          h("span", { class: agent.assigned === agent.in_force ? "" : "bad" }, shortDigest(agent.in_force)),
          agent.report_age_s === null ? "none" : `${duration(agent.report_age_s)} ago`, agent.rejection || "nothing"])));
  }

  async #audit() {
    const { items } = await audit().catch((error) => {
      if (error instanceof ApiError && error.status === 403) return { items: null };
      throw error;
    });
    this.trail.replaceChildren(items === null ? h("p", { class: "empty" }, "Your role does not include the audit trail.")
      : table("Audit trail", ["time", "who", "action", "target", "reason"],
        items.map((entry) => [moment(entry.at), `${entry.caller} (${entry.role})`, entry.action, entry.target, entry.reason])));
  }
}
