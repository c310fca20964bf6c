// What changes: the rollout with evidence and limits, overrides, the difference of two plans, the audit trail.

import { ApiError, get } from "./api.js";
import { actionButton, audit, changeTable, freezing, lifting, mayAct, overrideTable, rolloutButtons } from "./actions.js";
import { facts, h, section, show, table } from "./dom.js";
import { count, duration, milliseconds, moment, percent, shortDigest } from "./format.js";
import { PlanDiff } from "./plan_diff.js";

const PHASES = ["shadow", "canary", "watch", "done"];

/** The steps of a rollout, of which one is the present; a rollout that ended otherwise ends with that. */
function phases(present) {
  const [step, isHeld] = [present.replace("_held", ""), present.endsWith("_held")];
  return h("ol", { class: "phases", "aria-label": "Phases" }, (PHASES.includes(step) ? PHASES : [...PHASES.slice(0, 3), step]).map((phase) =>
    h("li", { "aria-current": phase === step ? "step" : null }, words(phase) + (phase === step && isHeld ? " (held)" : ""))));
}

const words = (name) => name.replaceAll("_", " ");

export class ChangeView {
  constructor(caller) {
    this.title = "Change";
    this.acts = mayAct(caller);
    this.caller = caller;
    this.buttons = h("p", { class: "buttons", hidden: true });
    this.rollout = h("div", {}, h("p", { class: "empty" }, "Loading…"));
    this.overrides = h("div", {}, h("p", { class: "empty" }, "Loading…"));
    this.trail = h("div", {}, h("p", { class: "empty" }, "Loading…"));
    this.diff = new PlanDiff();
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, "Change"),
      this.acts && h("p", { class: "buttons" }, actionButton("Freeze the plan…", () => freezing(() => this.status)))),
    section("Rollout", "", this.buttons, this.rollout),
    section("Overrides and maintenance windows", "", this.overrides), this.diff.element,
    section("Audit trail", "The latest 50 changes, newest first.", this.trail));
  }

  update(status) {
    this.status = status;
    this.diff.update(status);
    const last = this.acts ? (each) => (each.by_policy || each.state !== "active" ? "" : actionButton("Lift…", () => lifting(each))) : null;
    show(this.overrides, status.overrides.length ? overrideTable(status.overrides, last) : h("p", { class: "empty" }, "None."));
  }

  async refresh() {
    await Promise.all([this.#rollout(), this.#audit(), this.diff.refresh()]);
  }

  async #rollout() {
    const found = await get("/v1/rollouts/current").catch((error) => {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    });
    if (found === null) return show(this.rollout, h("p", { class: "empty" }, "No policy has been rolled out yet."));
    const { rollout, agents, changes, moves, limits, evidence } = found;
    const isOther = rollout.candidate !== rollout.in_force;
    this.#offer(rollout);
    return show(this.rollout,
      phases(rollout.phase),
      facts({
        Phase: `${words(rollout.phase)}, since ${moment(rollout.since)}`,
        Reason: rollout.why + (rollout.by ? ` (by ${rollout.by})` : ""),
        ...Object.fromEntries(outlook(found.outlook)),
        "Policy in force": version(rollout.in_force, rollout.provenance_in_force),
        Candidate: isOther ? version(rollout.candidate, rollout.provenance) : null,
        "A rollback restores": isOther || rollout.candidate === rollout.stable ? null : version(rollout.stable, rollout.stable_provenance),
        "Canary regions": rollout.canary.join(", ") || "none",
        "Demand that moves": (rollout.moved_share === null ? "not compared" : percent(rollout.moved_share)) +
          (limits ? `, at most ${percent(limits.max_moved_share)} without an operator` : ""),
        Durations: limits && `shadow ${duration(limits.shadow_s)}, canary at least ${duration(limits.canary_s)}, watch ${duration(limits.watch_s)}`,
        Limits: limits && `failures at most ${percent(limits.max_failure_increase)} more than before, time to first byte at most ${limits.max_latency_factor} times, ` +
          `judged from ${count(limits.min_requests)} requests on; canary agents accept within ${duration(limits.acknowledge_timeout_s)}`,
      }),
      evidence?.length > 0 && h("h3", {}, "Evidence of this phase"),
      evidence?.length > 0 && table("Evidence", ["region", "policy", "requests", "failed", "time to first byte", "before: requests", "before: failed", "before: time to first byte"],
        evidence.map((each) => [each.region, each.runs_candidate ? "candidate" : "stable", count(each.now.requests), percent(each.now.failed_share), firstByte(each.now),
          count(each.before.requests), percent(each.before.failed_share), firstByte(each.before)])),
      changes.length > 0 && h("h3", {}, "Changes of the candidate"), changes.length > 0 && changeTable(changes),
      moves?.length > 0 && h("h3", {}, "Shares that differ under the candidate"),
      moves?.length > 0 && table("Moves", ["from", "to", "model", "share before", "share after"],
        moves.slice(0, 20).map((move) => [move.origin, move.server, move.model, percent(move.before), percent(move.after)])),
      h("h3", {}, "Agents"),
      table("Agents", ["region", "agent", "policy assigned", "policy in force", "last report", "rejected"], agents.map((agent) =>
        [agent.region, agent.agent, shortDigest(agent.assigned),
          h("span", { class: agent.assigned === agent.in_force ? "" : "bad" }, shortDigest(agent.in_force), agent.assigned === agent.in_force ? "" : " ≠"),
          agent.report_age_s === null ? "none" : `${duration(agent.report_age_s)} ago`, agent.rejection || "nothing"])));
  }

  /** Replaces the buttons only when other actions are possible, so that the focus stays. */
  #offer(rollout) {
    const offered = this.acts ? rollout.actions.join() : "";
    this.buttons.hidden = !offered;
    if (this.offered === offered) return;
    this.offered = offered;
    this.buttons.replaceChildren(...rolloutButtons(rollout, this.caller));
  }

  async #audit() {
    const { items } = await audit().catch((error) => {
      if (error instanceof ApiError && error.status === 403) return { items: null };
      throw error;
    });
    show(this.trail, items === null ? h("p", { class: "empty" }, "Your role does not include the audit trail.")
      : table("Audit trail", ["time", "who", "action", "target", "reason"],
        items.map((entry) => [moment(entry.at), `${entry.caller} (${entry.role})`, entry.action, entry.target, entry.reason])));
  }
}

const version = (digest, commit) => `${shortDigest(digest)}, ${commit ? `commit ${commit.commit.slice(0, 12)}: ${commit.subject}` : "from a folder"}`;

/** What a rollout waits for, and the policy that waits for its own, as terms and texts. */
export function outlook(found) {
  if (!found) return [];
  const unmet = found.conditions.filter((each) => !each.is_met).map((each) => each.text), { waiting, ends_in_s: endsInS } = found;
  return [
    ...(unmet.length ? [["Waits for", unmet.join("; ") + (endsInS === null ? "" : `; ${duration(endsInS)} remain`)]] : []),
    ...(waiting ? [["Not rolled out", `policy ${shortDigest(waiting.digest)} of the source${waiting.place === null ? "" : `, number ${waiting.place} in the queue`}: ${waiting.why}` +
      (waiting.begins_in_s === null ? "" : `; it begins in ${duration(waiting.begins_in_s)} at the earliest`)]] : []),
    ...(found.versions ?? []).map(({ rollout, text }) => [`Rollout of ${rollout}`, text]),
  ];
}

const firstByte = ({ first_byte_s: seconds }) => (seconds === null ? "none" : milliseconds(1000 * seconds));
