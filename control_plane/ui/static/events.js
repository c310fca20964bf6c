// Events of the fleet as sentences, and as a list that stays quiet.

import { h } from "./dom.js";
import { count, moment, shortDigest } from "./format.js";

const MAX_LISTED = 30;

export function describeEvent({ kind, data }) {
  switch (kind) {
    case "leadership":
      return data.leader ? `${data.leader.name} leads (epoch ${data.epoch}): ${data.why}` : "no control plane leads here any more";
    case "region":
      return `${data.region}: ${data.before} → ${data.after}`;
    case "plan":
      return `plan ${data.generation}: ${data.changes.length + data.more_changes} shares changed` +
        (data.circumstances?.length ? ` (${data.circumstances.join("; ")})` : "");
    case "policy":
      return data.refused?.length ? `policy refused: ${data.refused[0]}` : `policy ${shortDigest(data.in_force)} in force`;
    case "rollout":
      return `rollout ${data.number} of ${shortDigest(data.candidate)}: ${data.phase}. ${data.why}`;
    case "audit":
      return `${data.caller} (${data.role}): ${data.action} ${data.target}. ${data.reason}`;
    default:
      return kind;
  }
}

/** Whether an event concerns a region. */
export const concerns = (event, region) => JSON.stringify(event.data).includes(JSON.stringify(region));

/** A list of events, newest first; steps of the plan that follow one another are one line. */
export function eventList(events) {
  if (!events.length) return h("p", { class: "empty" }, "None.");
  const lines = [];
  for (const event of events) {
    const last = lines.at(-1);
    if (event.kind === "plan" && last?.[0].kind === "plan") last.push(event);
    else if (lines.length < MAX_LISTED) lines.push([event]);
    else break;
  }
  return h("ol", { class: "events" }, lines.map((same) =>
    h("li", {}, h("time", { datetime: new Date(same[0].at * 1000).toISOString() }, moment(same[0].at)), " ", same.length === 1 ? describeEvent(same[0]) : describePlans(same))));
}

function describePlans(events) {
  const changes = events.reduce((sum, { data }) => sum + data.changes.length + data.more_changes, 0);
  return `plans ${events.at(-1).data.generation} to ${events[0].data.generation}: ${count(changes)} shares changed in ${count(events.length)} steps`;
}

/** The events in a fold that states the latest. */
export const latestEvents = (events) => h("section", {}, h("h2", {}, "Events"), events.length
  ? h("details", {}, h("summary", {}, `Latest: ${describeEvent(events[0])}`), eventList(events)) : h("p", { class: "empty" }, "None."));
