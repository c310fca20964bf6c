// The shell of the page: session, the stream of status and events, and the view that the address names.

import { ApiError, follow, get, pause, signOut } from "./api.js";
import { AskView } from "./ask.js";
import { ChangeView, outlook } from "./change.js";
import { duration, shortDigest } from "./format.js";
import { inForce } from "./fleet.js";
import { LiveStatus } from "./live.js";
import { NowView } from "./now.js";
import { PastView } from "./past.js";
import { RegionView } from "./region.js";
import { forget, renew, resume, showSignIn } from "./signin.js";
import { TenantsView, TenantView } from "./tenants.js";
import { UsageView } from "./usage.js";

/** Period (ms) of what a view reads itself while nothing happens; an event causes a read at once. */
const PERIOD_MS = 5000;
/** Least time (ms) between two reads that events cause. */
const APART_MS = 400;
const MAX_EVENTS = 500;
/** Time (ms) for which the page waits for a control plane that starts, before it offers another sign-in. */
const START_MS = 15_000;
const RETRY_MS = 1000;

const main = document.querySelector("#main");
const lost = document.querySelector("#lost");
const facts = document.querySelector("#facts");
const nav = document.querySelector("nav");
const signOutButton = document.querySelector("#sign-out");
const skeleton = document.querySelector("#skeleton");

/** Views that show nothing before the first status. */
const OF_STATUS = new Set(["now", "region", "change", "past"]);

class Page {
  constructor(caller) {
    this.caller = caller;
    this.events = [];
    this.live = new LiveStatus();
    this.stop = new AbortController();
    this.wake = () => ((this.isDue = true), this.resume?.());
    this.navigate = () => this.show();
    window.addEventListener("hashchange", this.navigate);
    nav.hidden = signOutButton.hidden = false;
    this.show();
    follow({ event: (event) => this.happened(event), status: (...update) => this.arrived(...update), lost: (error) => this.lost(error) },
      this.stop.signal);
    this.refresh();
  }

  show() {
    const [, name = "now", argument = ""] = location.hash.split("/");
    const views = {
      now: () => new NowView(),
      region: () => new RegionView(decodeURIComponent(argument), this.caller),
      change: () => new ChangeView(this.caller),
      ask: () => new AskView(),
      past: () => new PastView(),
      tenants: () => (argument ? new TenantView(decodeURIComponent(argument), this.caller) : new TenantsView(this.caller)),
      usage: () => new UsageView(),
    };
    const isKnown = Object.hasOwn(views, name);
    this.view = views[isKnown ? name : "now"]();
    this.waits = !this.live.status && (!isKnown || OF_STATUS.has(name));
    main.replaceChildren(this.waits ? skeleton : this.view.element);
    document.title = `${this.view.title ?? "Now"} · Penstock`;
    for (const link of nav.querySelectorAll("a")) {
      if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.draw();
    this.wake();
  }

  draw() {
    if (!this.live.status) return;
    if (this.waits) main.replaceChildren(this.view.element);
    this.waits = false;
    this.view.update(this.live.status, this.events);
  }

  arrived(update, isFirst) {
    this.live.apply(update, isFirst);
    lost.hidden = true;
    describe(this.live.status);
    this.draw();
  }

  happened(event) {
    this.events.unshift(event);
    if (this.events.length > MAX_EVENTS) this.events.pop();
    if (event.kind === "region" && this.live.regionChanged(event.data)) this.draw();
    this.wake();
  }

  /** Returns whether to try again. */
  lost(error) {
    if (error.status === 401) {
      this.end("The session has ended.");
      return false;
    }
    const silentS = this.live.receivedAt === undefined ? null : (performance.now() - this.live.receivedAt) / 1000;
    lost.hidden = false;
    lost.textContent = error instanceof ApiError
      ? `The control plane reports: ${error.message}`
      : `The control plane ${silentS === null ? "does not answer" : `has not answered for ${duration(silentS)}. What is shown is as old`}; regions serve without it. Trying again.`;
    return error.status !== 403;
  }

  /** Reads what is not streamed: at intervals, and soon after an event. */
  async refresh() {
    while (!this.stop.signal.aborted) {
      this.isDue = false;
      try {
        await this.view.refresh?.();
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) return this.end("The session has ended.");
        // That the control plane does not answer shows at the stream.
        if (!(error instanceof ApiError) && !(error instanceof TypeError)) console.error(error);
      }
      await pause(APART_MS, this.stop.signal);
      await this.until(PERIOD_MS - APART_MS);
    }
    return undefined;
  }

  until(milliseconds) {
    if (this.isDue) return undefined;
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.resume = () => (clearTimeout(timer), resolve());
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
  const waits = outlook(status.outlook).map(([term, text]) => `${term}: ${text}`);
  facts.textContent = [status.name, leader, plan, `policy ${shortDigest(inForce(status))}`, ...waits, status.store.up ? "" : "etcd does not answer", status.fleet_problem]
    .filter(Boolean).join(" · ");
}

async function enter() {
  const caller = await get("/v1/whoami");
  resume();
  new Page(caller);
}

async function begin() {
  for (const startedAt = performance.now(); ; await pause(RETRY_MS)) {
    try {
      return await enter();
    } catch (error) {
      const isApi = error instanceof ApiError;
      if (isApi && error.status === 503 && performance.now() - startedAt < START_MS) continue;
      return showSignIn(enter, isApi && error.status !== 401 ? error.message : "");
    }
  }
}

signOutButton.addEventListener("click", async () => {
  await signOut().catch(() => {});
  forget();
  location.reload();
});

begin();
