// Sign-in with a key, or through the identity provider, whose sessions the page renews by itself.

import { ApiError, signIn } from "./api.js";
import { h } from "./dom.js";

const provider = document.querySelector("meta[name=identity-provider]").content;

/** Kept by the browser for this tab: when it went to the provider (ms), and from which view. Nothing secret. */
const [LEFT_AT, LEFT_FROM] = ["penstock-left-at", "penstock-left-from"];
/** Least time (ms) between two visits of the provider without a click: one that gives no lasting session is not repeated. */
const APART_MS = 60_000;

function leave() {
  sessionStorage.setItem(LEFT_AT, Date.now());
  if (location.hash) sessionStorage.setItem(LEFT_FROM, location.hash);
  location.assign("sign-in");
}

/** Goes through the provider again if the last sign-in was there; false if the person must sign in here. */
export function renew() {
  const leftAt = Number(sessionStorage.getItem(LEFT_AT));
  if (!provider || !leftAt || Date.now() - leftAt < APART_MS) return false;
  leave();
  return true;
}

/** After a sign-in: returns to the view that the person left. */
export function resume() {
  const from = sessionStorage.getItem(LEFT_FROM);
  if (from && !location.hash) location.hash = from;
  sessionStorage.removeItem(LEFT_FROM);
}

export function forget() {
  sessionStorage.removeItem(LEFT_AT);
}

/** Shows the form; calls `onSession` once there is a session. `why` is shown below it. */
export function showSignIn(onSession, why = "") {
  const key = h("input", { type: "password", required: true, autocomplete: "current-password", id: "key" });
  const line = h("p", { class: "bad", role: "alert" }, why);
  const form = h("form", { class: "sign-in" }, h("h1", {}, "Penstock"),
    provider && h("button", { type: "button", class: "primary", onclick: leave }, `Sign in with ${provider}`),
    h("label", { for: "key" }, provider ? "or with an API key or token" : "API key or token"), key,
    h("button", { type: "submit", class: provider && "secondary" }, "Sign in"), line,
    h("p", { class: "hint" }, "The key is sent to this control plane once. The browser keeps it encrypted, in a cookie that scripts cannot read."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn(key.value);
      forget();
      await onSession();
    } catch (error) {
      line.textContent = error instanceof ApiError ? error.message : "The control plane does not answer.";
    }
  });
  document.querySelector("#main").replaceChildren(form);
  (provider ? form.querySelector("button") : key).focus();
}
