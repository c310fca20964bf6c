// Events of the fleet as sentences.

import { shortDigest } from "./format.js";

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
