// What needs an operator: alarms, warnings and notes of a status, each as a line of words. The worst come first.

import { placeOf } from "./actions.js";
import { h } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { SEVERITY } from "./map_layout.js";

const LEVELS = { alarm: 0, warning: 1, note: 2 };
const OF_STATE = { failed: "alarm", suspect: "alarm", degraded: "warning", unknown: "warning", draining: "note", recovering: "note" };
/** What a state is called where its name alone says too little. */
const WORDS = { unknown: "without a report" };
const MAX_NAMED = 6;

export const regionLink = (name) => h("a", { href: `#/region/${encodeURIComponent(name)}` }, name);

/** The first few of `rows`, and how many more there are. */
function few(rows, each, separator = ", ") {
  const shown = rows.slice(0, MAX_NAMED).flatMap((row, index) => [index ? separator : "", each(row)].flat());
  return rows.length > MAX_NAMED ? [...shown, `${separator}and ${count(rows.length - MAX_NAMED)} more`] : shown;
}

const some = (rows, one, many = `${one}s`) => `${count(rows.length)} ${rows.length === 1 ? one : many}`;

/** The objectives of all regions, those that are missed by most first, then those that are met. */
export const objectives = (status, model = "") => status.regions.flatMap((region) => region.objectives
  .filter((each) => !model || each.model === model).map((each) => ({ region: region.name, ...each })))
  .sort((a, b) => lack(b) - lack(a));

const lack = ({ is_met: isMet, attained, share }) => (isMet === false ? share - attained : isMet ? -1 : -2);

export const target = ({ share, measure, limit_s: limitS }) =>
  `${percent(share)} ${measure === "total" ? "complete" : "begin"} within ${duration(limitS)}`;

function lines(status) {
  const found = [], add = (level, what, ...detail) => found.push({ level, what, detail });
  if (!status.store.up) add("alarm", "etcd does not answer", "plans, policy and overrides stay as they are; regions serve on");
  if (status.leader === null) add("alarm", "No control plane leads", "the plan stays as it is");
  if (status.fleet_problem) add("warning", "The state of the fleet is not the leader's", status.fleet_problem);
  if (status.policy.refused.length) add("alarm", "The newest policy is refused", few(status.policy.refused, (each) => each, "; "));
  if (status.policy.unreadable) add("warning", "The source of the policy cannot be read", status.policy.unreadable);
  if (status.rollout?.phase.endsWith("_held")) add("warning", "The rollout is held", status.rollout.why);
  for (const state of Object.keys(SEVERITY).filter((each) => OF_STATE[each])) {
    const regions = status.regions.filter((region) => region.state === state);
    if (regions.length) add(OF_STATE[state], `${some(regions, "region")} ${WORDS[state] ?? state}`, few(regions, ({ name }) => regionLink(name)));
  }
  const missed = objectives(status).filter((each) => each.is_met === false);
  if (missed.length) add("alarm", `${some(missed, "objective")} missed`, few(missed, (each) =>
    [each.model, " at ", regionLink(each.region), ` (${percent(each.attained)}, target ${target(each)})`]));
  const now = status.shortfalls.filter((each) => each.lost === null), later = status.shortfalls.filter((each) => each.lost !== null);
  const slots = (each) => `${each.model}: ${count(Math.ceil(each.slots))} slots`;
  if (now.length) add("alarm", "Capacity is missing", few(now, slots));
  if (later.length) add("warning", "Capacity would be missing", few(later, (each) => `${slots(each)} if ${each.lost} fails`));
  const unready = status.regions.filter((region) => region.unready_count);
  const total = unready.reduce((sum, region) => sum + region.unready_count, 0);
  if (total) add("warning", `${count(total)} ${total === 1 ? "endpoint receives" : "endpoints receive"} no requests`, few(unready, ({ name, unready_count: some }) => [regionLink(name), ` ${some}`]));
  const overrides = status.overrides.filter(({ state }) => state === "active");
  if (overrides.length) add("note", `${some(overrides, "override")} in force`, few(overrides, ({ override }) =>
    `${override.kind.replaceAll("_", " ")} of ${placeOf(override) ?? "all plans"} by ${override.author}: ${override.reason}`, "; "));
  return found.sort((a, b) => LEVELS[a.level] - LEVELS[b.level]);
}

/** The list of a status. Without alarms and warnings it says so. */
export function alarmList(status) {
  const found = lines(status);
  const all = status.regions.flatMap((region) => region.objectives), met = all.filter((each) => each.is_met);
  const quiet = !found.some(({ level }) => level !== "note") && h("li", { class: "good" },
    `✓ No alarm. ${status.regions.length === 1 ? "1 region serves" : `${count(status.regions.length)} regions serve`}${all.length ? `; ${count(met.length)} of ${count(all.length)} objectives met, ${count(all.length - met.length)} without traffic` : ""}.`);
  return h("ul", { class: "alarms", "aria-label": "Alarms" }, quiet, found.map(({ level, what, detail }) =>
    h("li", {}, h("span", { class: `level ${level}` }, level), h("strong", {}, what), " ", detail)));
}
