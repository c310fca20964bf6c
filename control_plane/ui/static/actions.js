// Actions of operators. Each shows first what it would do, and asks for a reason.

import { ApiError, get, getWithEtag, post, remove } from "./api.js";
import { h, table } from "./dom.js";
import { percent, rate } from "./format.js";

const HOUR_S = 3600;

/** The sentence under a form: what was done, or why not. */
function outcome() {
  return h("p", { class: "outcome", role: "status" });
}

async function report(line, done, work) {
  line.className = "outcome";
  line.textContent = "…";
  try {
    line.textContent = (await work()) ?? done;
    line.classList.add("good");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    line.textContent = error.status === 403 ? `Your role does not permit this: ${error.message}` : error.message;
    line.classList.add("bad");
  }
}

/** What the loss of regions would move, as a summary and a table. */
export async function preview(lost) {
  const { before, after, moves, moved_per_s: movedPerS } = await post("/v1/what-if", { lost });
  const refused = (totals) => Object.values(totals.refused_per_s).reduce((sum, each) => sum + each, 0);
  return h("div", { class: "preview" },
    h("p", {}, `${rate(movedPerS)} of ${rate(before.requests_per_s)} would be served elsewhere; refused: ${rate(refused(before))} → ${rate(refused(after))}; ` +
      `mean round trip: ${Math.round(before.round_trip_ms)} → ${Math.round(after.round_trip_ms)} ms.`),
    table("Highest loads after it", ["region", "busy before", "busy after"],
      Object.entries(after.load).sort((a, b) => b[1] - a[1]).slice(0, 6)
        .map(([name, share]) => [name, percent(before.load[name] ?? 0), percent(share)])),
    moves.length > 0 && table("What moves", ["origin", "tenant", "model", "from", "to", "traffic"],
      moves.slice(0, 12).map((move) => [move.origin, move.tenant, move.model, move.source, move.target, rate(move.requests_per_s)])));
}

export function drainForm(region) {
  const reason = h("input", { name: "reason", required: true, maxlength: "500", autocomplete: "off" });
  const hours = h("select", { name: "expires" }, [1, 4, 12, 24].map((each) => h("option", { value: each * HOUR_S }, `${each} h`)),
    h("option", { value: "none" }, "until lifted"));
  const shown = h("div"), line = outcome();
  const confirm = h("button", { type: "submit", disabled: true }, "Drain");
  const form = h("form", { class: "action" },
    h("h2", {}, `Drain ${region}`),
    h("label", {}, "Reason ", reason), h("label", {}, "For ", hours),
    h("button", { type: "button", onclick: () => report(line, "", async () => {
      shown.replaceChildren(await preview([region]));
      confirm.disabled = false;
      return "This is what the loss of the region would move.";
    }) }, "Show what would move"), confirm, shown, line);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const expiry = hours.value === "none" ? "none" : Number(hours.value);
    report(line, `${region} drains.`, async () => {
      await post(`/v1/regions/${encodeURIComponent(region)}/drain`, { reason: reason.value, expires_in_s: expiry });
      confirm.disabled = true;
    });
  });
  return form;
}

export function undrainForm(region) {
  const reason = h("input", { required: true, maxlength: "500", autocomplete: "off" }), line = outcome();
  const form = h("form", { class: "action" }, h("h2", {}, `Undrain ${region}`), h("label", {}, "Reason ", reason),
    h("button", { type: "submit" }, "Undrain"), line);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    report(line, `${region} returns by steps.`, async () => {
      await post(`/v1/regions/${encodeURIComponent(region)}/undrain`, { reason: reason.value });
    });
  });
  return form;
}

/** A button that lifts an override. */
export function liftButton({ override }, line) {
  return h("button", { type: "button", onclick: () => report(line, "Lifted.", async () => {
    const reason = window.prompt(`Why is the ${override.kind} of ${override.region ?? "all plans"} lifted?`);
    if (!reason) return "Nothing was changed.";
    const path = `/v1/overrides/${encodeURIComponent(override.id)}`;
    const { etag } = await getWithEtag(path);
    await remove(path, { reason }, { "if-match": etag });
  }) }, "Lift");
}

/** Buttons of a rollout: halt, resume, promote, roll back; the ETag prevents an action on another state. */
export function rolloutButtons(line) {
  const act = (action, words) => h("button", { type: "button", onclick: () => report(line, `${words}.`, async () => {
    const reason = window.prompt(`${words}: why?`);
    if (!reason) return "Nothing was changed.";
    const { etag } = await getWithEtag("/v1/rollouts/current");
    await post(`/v1/rollouts/current/${action}`, { reason }, { "if-match": etag });
  }) }, words);
  return [act("halt", "Halt"), act("resume", "Resume"), act("promote", "Promote"), act("rollback", "Roll back")];
}

export function freezeForm() {
  const reason = h("input", { required: true, maxlength: "500", autocomplete: "off" }), line = outcome();
  const form = h("form", { class: "action" }, h("h2", {}, "Freeze the plan"), h("label", {}, "Reason ", reason),
    h("button", { type: "submit" }, "Freeze for 1 h"), line);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    report(line, "Shares stay as they are, except for failures.", async () => {
      await post("/v1/overrides", { kind: "freeze", reason: reason.value, expires_in_s: HOUR_S });
    });
  });
  return form;
}

export const audit = () => get("/v1/audit?limit=50");
