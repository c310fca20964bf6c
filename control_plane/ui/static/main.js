// The shell of the page: session, polling, events, and the view that the address names.

import { ApiError, follow, get, pause, signOut } from "./api.js";
import { AskView } from "./ask.js";
import { ChangeView } from "./change.js";
import { h } from "./dom.js";
import { duration, shortDigest } from "./format.js";
import { NowView } from "./now.js";
import { PastView } from "./past.js";
import { RegionView } from "./region.js";
import { forget, renew, resume, showSignIn } from "./signin.js";

/** Period (ms) of the status while nothing happens; an event causes an update at once. */
const PERIOD_MS = 5000;
const RETRY_MS = 1000;
/** Least time (ms) between two updates that events cause. */
const APART_MS = 400;
const MAX_EVENTS = 500;

const main = document.querySelector("#main");
const lost = document.querySelector("#lost");
const facts = document.querySelector("#facts");
const nav = document.querySelector("nav");
const signOutButton = document.querySelector("#sign-out");

class Page {
  constructor(caller) {
    this.caller = caller;
    this.events = [];
    this.stop = new AbortController();
    this.wake = () => {};
    this.navigate = () => this.show();
    window.addEventListener("hashchange", this.navigate);
    nav.hidden = signOutButton.hidden = false;
    this.show();
    follow((event) => {
      this.events.unshift(event);
      if (this.events.length > MAX_EVENTS) this.events.pop();
      this.wake();
    }, this.stop.signal);
    this.poll();
  }

  show() {
    const [, name = "now", argument = ""] = location.hash.split("/");
    const views = {
      now: () => new NowView(),
      region: () => new RegionView(decodeURIComponent(argument), this.caller),
      change: () => new ChangeView(this.caller),
      ask: () => new AskView(),
      past: () => new PastView(),
    };
    this.view = (views[name] ?? views.now)();
    main.replaceChildren(this.view.element);
    for (const link of nav.querySelectorAll("a")) {
      if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.wake();
  }

  async poll() {
    let answeredAt = performance.now();
    while (!this.stop.signal.aborted) {
      let wait = PERIOD_MS;
      try {
        const status = await get("/v1/status", { signal: AbortSignal.timeout(10_000) });
        answeredAt = performance.now();
        lost.hidden = true;
        describe(status);
        await this.view.update(status, this.events);
      } catch (error) {
        if (this.stop.signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return this.end("The session has ended.");
        wait = RETRY_MS;
        lost.hidden = false;
        lost.textContent = error instanceof ApiError
          ? `The control plane reports: ${error.message}`
          : `The control plane has not answered for ${duration((performance.now() - answeredAt) / 1000)}. What is shown is as old; regions serve without it. Trying again.`;
        if (!(error instanceof ApiError) && !(error instanceof TypeError) && error.name !== "TimeoutError") console.error(error);
      }
      await pause(APART_MS, this.stop.signal);
      await this.until(wait - APART_MS);
    }
  }

  until(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => (clearTimeout(timer), resolve());
    });
  }

  end(why) {
    this.stop.abort();
    window.removeEventListener("hashchange", this.navigate);
    nav.hidden = signOutButton.hidden = true;
    facts.replaceChildren();
    lost.hidden = true;
    if (!renew()) showSignIn(enter, why);
  }
}

function describe(status) {
  const leader = status.leader === null ? "no leader" : `leader ${status.leader.name}`;
  const plan = status.plan === null ? "no plan" : `plan ${status.plan.generation}, ${duration(status.plan.age_s)} old`;
  facts.textContent = [status.name, leader, plan, `policy ${shortDigest(status.policy.digest)}`, status.store.up ? "" : "etcd does not answer", status.fleet_problem]
    .filter(Boolean).join(" · ");
}

async function enter() {
  const caller = await get("/v1/whoami");
  resume();
  new Page(caller);
}

async function begin() {
  try {
    await enter();
  } catch (error) {
    showSignIn(enter, error instanceof ApiError && error.status !== 401 ? error.message : "");
  }
}

signOutButton.addEventListener("click", async () => {
  await signOut().catch(() => {});
  forget();
  location.reload();
});

begin();
