// Actions of operators, each in a dialog: it shows first what the action would do, and asks for a reason.

import { ApiError, get, getWithEtag, post, remove } from "./api.js";
import { facts, h, table } from "./dom.js";
import { flows, overridesOf } from "./fleet.js";
import { duration, milliseconds, percent, rate, shortDigest } from "./format.js";

const HOUR_S = 3600;
const LEFT_OUT = 12;

export const mayAct = (caller) => caller.role === "operator" || caller.role === "admin";

/** A button that opens the dialog of an action. */
export const actionButton = (label, action) => h("button", { type: "button", onclick: () => open(action()) }, label);

/**
 * A dialog. `preview` returns what to show, what `act` needs of it, and why the action would be rejected, if it would; it is
 * needed before `act`, which also gets the reason. A change of a field needs a new preview. An action that would be rejected
 * cannot be confirmed, unless an admin forces it against the guard rails. `done` is the text afterwards, or a function that
 * returns it for the response.
 */
function open({ title, confirm, fields = {}, admin = false, preview, act, done }) {
  const reason = h("input", { name: "reason", required: true, maxlength: "500", autocomplete: "off" });
  const force = h("input", { type: "checkbox" });
  const forced = h("label", { class: "check", hidden: true }, force, "Set it although guard rails refuse it");
  const shown = h("div", { "aria-live": "polite" }), line = h("p", { class: "outcome", role: "status" });
  const submit = h("button", { type: "submit", disabled: true }, confirm);
  let found = null;
  const offer = () => (submit.disabled = !found || Boolean(found.rejection && !(force.checked && !forced.hidden)));
  force.addEventListener("change", offer);
  const look = h("button", { type: "button", onclick: () => run(line, async () => {
    const [node, known, rejection] = await preview();
    shown.replaceChildren(node);
    found = { known, rejection };
    force.checked = false;
    forced.hidden = !(admin && rejection?.by === "guard_rail");
    offer();
    return "";
  }) }, "Show what it would do");
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const form = h("form", { class: "action" }, h("h2", {}, title),
    Object.entries(fields).map(([label, field]) => h("label", {}, `${label} `, field)), h("label", {}, "Reason ", reason),
    h("div", { class: "buttons" }, look, submit, cancel), forced, shown, line);
  for (const field of Object.values(fields)) field.addEventListener("change", () => ((found = null), offer()));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(line, async () => {
      let made;
      try {
        made = await act(reason.value, found.known, force.checked);
      } catch (error) {
        forced.hidden = !(admin && error.problem?.guard);
        if (error.problem?.guard) shown.replaceChildren(guardRails(error.problem));
        throw error;
      }
      submit.disabled = look.disabled = true;
      return typeof done === "function" ? done(made) : done;
    });
  });
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
}

/** Runs `work` and shows its outcome, or why there is none. */
export async function run(line, work) {
  line.className = "outcome";
  line.textContent = "…";
  try {
    line.textContent = await work();
    line.classList.add("good");
  } catch (error) {
    if (!(error instanceof ApiError) && !(error instanceof TypeError)) throw error;
    line.classList.add("bad");
    line.textContent = error.status === 403 ? `Your role does not permit this: ${error.message}`
      : error.status === 412 ? `It has changed meanwhile; nothing was done. Look again. (${error.message})`
        : error instanceof ApiError ? error.message : "The control plane does not answer; look whether it was done.";
  }
}

function guardRails({ classes = [], withdrawn = {} }) {
  return h("div", { class: "preview" },
    classes.length > 0 && table("Classes without a region", ["residency class", "model", "tenants"],
      classes.map((each) => [each.residency, each.model, each.tenants.join(", ")])),
    Object.keys(withdrawn).length > 0 && table("Capacity withdrawn", ["model", "share of the fleet's capacity"],
      Object.entries(withdrawn).map(([model, share]) => [model, percent(share)])));
}

/** Why proposed overrides would be rejected. */
function rejected(rejections) {
  return rejections.map(({ detail, objection }) => h("div", {}, h("p", { class: "bad" }, `This would be refused: ${detail}.`), objection && guardRails(objection)));
}

/** What the loss of regions, overrides or a candidate policy would move: a summary and tables, and what would be rejected. */
export async function consequences(change) {
  const answer = await post("/v1/what-if", change);
  return [summary(answer), answer.rejections];
}

function summary({ before, after, moves, moved_per_s: movedPerS, policy_before: from, policy_after: to, demand, fleet,
  conditions_before: old, conditions_after: now, rejections }) {
  const refused = (totals) => Object.values(totals.refused_per_s).reduce((sum, each) => sum + each, 0);
  const pair = (unit, value) => `${unit(value(before))} → ${unit(value(after))}`;
  const regions = Object.keys({ ...before.load, ...after.load }).sort((a, b) => (after.load[b] ?? 0) - (after.load[a] ?? 0));
  return h("div", { class: "preview" }, rejected(rejections),
    h("p", {}, h("strong", {}, `${rate(movedPerS)} of ${rate(before.requests_per_s)} would be served elsewhere.`)),
    facts({
      Refused: pair(rate, refused),
      "Mean round trip": pair(milliseconds, (totals) => totals.round_trip_ms),
      "Mean wait": pair(milliseconds, (totals) => totals.wait_ms),
      Policy: from === to ? null : `${shortDigest(from)} → ${shortDigest(to)}`,
      Basis: `demand: ${demand}; capacity: ${fleet}`,
      "In effect before": old.join("; ") || "no override, window or loss",
      "Ends with it": old.filter((each) => !now.includes(each)).join("; ") || null,
    }),
    table("Highest loads after it", ["region", "busy slots before", "busy slots after"],
      regions.slice(0, LEFT_OUT).map((name) => [name, percent(before.load[name] ?? 0), percent(after.load[name] ?? 0)])),
    moves.length > 0 && h("h3", {}, "Who would move"),
    moves.length > 0 && table("What moves", ["origin", "tenant", "countries", "model", "from", "to", "traffic"],
      moves.slice(0, LEFT_OUT).map((move) => [move.origin || "(steered)", move.tenant, move.countries.slice(0, 6).join(", "), move.model, move.source, move.target, rate(move.requests_per_s)])),
    moves.length > LEFT_OUT && h("p", { class: "hint" }, `${moves.length - LEFT_OUT} smaller moves are not shown.`));
}

/** Durations of an override; the first one is the default, which API and command line have too. */
const expiry = () => h("select", {}, h("option", { value: "none" }, "until lifted"),
  [1, 4, 12, 24].map((each) => h("option", { value: each * HOUR_S }, `${each} h`)));
const seconds = (field) => (field.value === "none" ? "none" : Number(field.value));

/** Empties a region: `drain` by steps, `fail_over` at once. */
export function emptying(kind, region, caller) {
  const hours = expiry();
  const isDrain = kind === "drain";
  return {
    title: isDrain ? `Drain ${region}` : `Fail over ${region}`,
    confirm: isDrain ? "Drain" : "Fail over",
    fields: { For: hours },
    admin: caller.role === "admin",
    done: isDrain ? `${region} drains.` : `${region} is failed over.`,
    preview: async () => {
      const [node, rejections] = await consequences({ overrides: [{ kind, region, expires_in_s: seconds(hours) }] });
      return [h("div", {},
        h("p", {}, isDrain ? "The region receives no new traffic; its shares move at the policy's rate, and running requests complete."
          : "The region receives no new traffic at once, as if it had failed. Running requests complete."), node), null, rejections[0]];
    },
    act: (reason, _, force) => post("/v1/overrides", { kind, region, reason, expires_in_s: seconds(hours), ...(force ? { force } : {}) }),
  };
}

/** Drains one of the endpoints of a region, which `endpoints` returns. */
export function drainingEndpoint(region, endpoints, caller) {
  const hours = expiry();
  const choice = h("select", {}, endpoints().map((each) => h("option", { value: each.name }, `${each.name} (${each.state})`)));
  const wanted = () => ({ kind: "drain_endpoint", region, endpoint: choice.value, expires_in_s: seconds(hours) });
  return {
    title: `Drain an endpoint of ${region}`,
    confirm: "Drain",
    fields: { Endpoint: choice, For: hours },
    admin: caller.role === "admin",
    done: () => `${choice.value} drains.`,
    preview: async () => {
      const endpoint = endpoints().find((each) => each.name === choice.value);
      if (!endpoint) return [h("p", { class: "bad" }, "No endpoint is reported."), null, { by: "invalid" }];
      const effect = h("p", {}, `It receives no new requests of ${endpoint.models.join(", ")}; its ${endpoint.in_flight} running requests complete.`);
      try {
        await post("/v1/overrides?dry_run=true", { ...wanted(), reason: "preview" });
      } catch (error) {
        if (!(error instanceof ApiError) || !error.problem?.guard) throw error;
        return [h("div", {}, effect, h("p", { class: "bad" }, `This would be refused: ${error.message}.`), guardRails(error.problem)), null, { by: "guard_rail" }];
      }
      return [effect, null, null];
    },
    act: (reason, _, force) => post("/v1/overrides", { ...wanted(), reason, ...(force ? { force } : {}) }),
  };
}

/** Lifts every drain and failover of a region. */
export function undraining(region, status) {
  return {
    title: `Undrain ${region}`,
    confirm: "Undrain",
    done: `${region} returns by steps.`,
    preview: async () => {
      const lifted = overridesOf(status(), region).filter(({ override, state, by_policy: byPolicy }) => !byPolicy && state === "active" && ["drain", "fail_over"].includes(override.kind));
      if (!lifted.length) return [h("p", { class: "bad" }, "No operator drains it or fails it over. A maintenance window ends by the policy."), null, { by: "invalid" }];
      const [node] = await consequences({ lift: lifted.map(({ override }) => override.id) });
      return [h("div", { class: "preview" }, h("p", {}, "Traffic returns along the policy's failback ramp. These overrides would be lifted:"),
        overrideTable(lifted), node)];
    },
    act: (reason) => post(`/v1/regions/${encodeURIComponent(region)}/undrain`, { reason }),
  };
}

export const placeOf = ({ region, endpoint }) => (endpoint ? `${region}/${endpoint}` : region);

export function lifting({ override }) {
  const path = `/v1/overrides/${encodeURIComponent(override.id)}`;
  const what = `${override.kind.replaceAll("_", " ")} of ${placeOf(override) ?? "all plans"}`;
  return {
    title: `Lift the ${what}`,
    confirm: "Lift",
    done: "Lifted.",
    preview: async () => {
      const { content, etag } = await getWithEtag(path);
      if (override.kind === "freeze") return [h("div", { class: "preview" }, overrideTable([content]), h("p", {}, "The planner may move shares again.")), etag];
      const [node] = await consequences({ lift: [override.id] });
      return [h("div", { class: "preview" }, overrideTable([content]), h("p", {}, "Traffic returns along the policy's failback ramp."), node), etag];
    },
    act: (reason, etag) => remove(`${path}?${new URLSearchParams({ reason })}`, undefined, { "if-match": etag }),
  };
}

export function freezing(status) {
  const hours = expiry();
  return {
    title: "Freeze the plan",
    confirm: "Freeze",
    fields: { For: hours },
    done: "Shares stay as they are, except for failures.",
    preview: async () => {
      const away = flows(status()).filter((flow) => flow.origin !== flow.server && flow.perS > 0).sort((a, b) => b.perS - a.perS);
      return [h("div", { class: "preview" },
        h("p", {}, "Shares stay as they are now; emergencies, residency and other overrides take precedence. The fleet would no longer adapt to demand. What would stay:"),
        table("Shares that stay", ["from", "to", "traffic", "reason"], away.slice(0, LEFT_OUT).map((flow) => [flow.origin, flow.server, rate(flow.perS), flow.why]),
          "Every region serves its own clients."))];
    },
    act: (reason) => post("/v1/overrides", { kind: "freeze", reason, expires_in_s: seconds(hours) }),
  };
}

/** Names of events where they differ from those of the actions. */
const EVENTS = { rollback: "roll_back" };

const ROLLOUT_ACTIONS = {
  halt: ["Halt", "No further region receives the policy; regions that run it keep it."],
  resume: ["Resume", "A held or halted rollout continues; a canary phase starts again."],
  promote: ["Promote", "Every region receives the policy now, without waiting for the remaining evidence."],
  rollback: ["Roll back", "Every region returns to the stable policy. The rollout does not start again by itself."],
};

/** Actions that continue a rollout need the role admin. */
const ADMIN_ACTIONS = new Set(["resume", "promote"]);

/** Buttons of the actions that are possible in the rollout's phase, and permitted to the caller. */
export const rolloutButtons = ({ actions }, caller) => Object.keys(ROLLOUT_ACTIONS)
  .filter((action) => actions.includes(EVENTS[action] ?? action) && (caller.role === "admin" || !ADMIN_ACTIONS.has(action)))
  .map((action) => actionButton(ROLLOUT_ACTIONS[action][0], () => advancing(action)));

function advancing(action) {
  const [confirm, effect] = ROLLOUT_ACTIONS[action];
  return {
    title: `${confirm} the rollout`,
    confirm,
    done: "Done.",
    preview: async () => {
      const { content: { rollout, agents, changes }, etag } = await getWithEtag("/v1/rollouts/current");
      const target = action === "rollback" ? rollout.stable : rollout.candidate;
      const others = agents.filter((agent) => agent.in_force !== target);
      return [h("div", { class: "preview" }, h("p", {}, effect),
        facts({ Phase: rollout.phase, Candidate: shortDigest(rollout.candidate), Stable: shortDigest(rollout.stable),
          [`Agents that run another policy than ${shortDigest(target)}`]: others.length ? others.map((agent) => `${agent.region}/${agent.agent}`).slice(0, LEFT_OUT).join(", ") : "none" }),
        changes.length > 0 && h("p", {}, action === "rollback" ? "Changes that would be undone:" : "Changes of the candidate:"),
        changes.length > 0 && changeTable(changes)), etag];
    },
    act: (reason, etag) => post(`/v1/rollouts/current/${action}`, { reason }, { "if-match": etag }),
  };
}

/** Differences of two policies. */
export const changeTable = (changes) => table("Changes of the policy", ["kind", "name", "field", "before", "after"],
  changes.slice(0, 100).map((change) => [change.kind, change.name, change.field || "all of it", value(change.before), value(change.after)]));

const value = (found) => (found === null || found === undefined ? "none" : typeof found === "string" ? found : JSON.stringify(found).slice(0, 200));

export const overrideTable = (overrides, last = null) => table("Overrides",
  ["kind", "region", "limited to", "author", "reason", "state", "time left", ...(last ? [""] : [])],
  overrides.map((each) => [each.override.kind.replaceAll("_", " ") + (each.override.value === null ? "" : ` ${percent(each.override.value)}`), placeOf(each.override) ?? "all",
    [each.override.model, each.override.origin && `clients of ${each.override.origin}`].filter(Boolean).join(", ") || "nothing", each.override.author, each.override.reason,
    each.by_policy ? `${each.state}, maintenance window` : each.state,
    each.state !== "active" ? "" : each.ends_in_s === null ? "until lifted" : duration(each.ends_in_s), ...(last ? [last(each)] : [])]));

export const audit = () => get("/v1/audit?limit=50");
