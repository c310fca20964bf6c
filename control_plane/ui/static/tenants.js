// Tenants of the policy and created ones: a list with search, and one tenant with its keys.

import { ApiError, get, getWithEtag, post, remove } from "./api.js";
import { actionButton, mayAct } from "./actions.js";
import { facts, h, section, show, table } from "./dom.js";
import { moment } from "./format.js";

const SHOWN = 100;

const path = (name, rest = "") => `/v1/tenants/${encodeURIComponent(name)}${rest}`;
const state = (tenant) => (tenant.suspended ? "suspended" : tenant.problem ? "problem" : "active");
const at = (seconds) => (seconds === null ? "" : moment(seconds));
const amount = (value) => String(Number(value.toPrecision(4)));
const limits = (budgets) => budgets.map((each) => `${each.limit} ${each.unit.replaceAll("_", " ")}${each.scope === "region" ? " in each region" : ""}`).join("; ") || "none";

export class TenantsView {
  constructor(caller) {
    this.title = "Tenants";
    this.search = h("input", { type: "search", "aria-label": "Search by name", placeholder: "part of the name", autocomplete: "off" });
    this.search.addEventListener("input", () => this.refresh());
    this.list = h("div", { "aria-live": "polite" });
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, "Tenants"),
      mayAct(caller) && h("p", { class: "buttons" }, actionButton("Create a tenant…", creating))),
    section("Search", "Created tenants can be changed here, those of the policy in the policy.", this.search, this.list));
  }

  update() {}

  async refresh() {
    const search = this.search.value.trim();
    const page = await get(`/v1/tenants?${new URLSearchParams({ limit: SHOWN, ...(search ? { search } : {}) })}`);
    if (search !== this.search.value.trim()) return;
    show(this.list, table("Tenants", ["name", "source", "tier", "data class", "keys", "state", "note"], page.items.map((tenant) => [
      h("a", { href: `#/tenants/${encodeURIComponent(tenant.name)}` }, tenant.name), tenant.source, tenant.tier ?? "", tenant.data_class,
      String(tenant.keys), h("span", { class: state(tenant) === "active" ? "" : "bad" }, state(tenant)), tenant.note]), "No tenant has this text in its name."),
    page.next_cursor !== null && h("p", { class: "hint" }, `The first ${SHOWN} are shown: search for others.`));
  }
}

export class TenantView {
  constructor(name, caller) {
    this.title = name;
    this.name = name;
    this.caller = caller;
    this.buttons = h("p", { class: "buttons", hidden: true });
    this.about = h("div");
    this.keys = h("div");
    this.budgets = h("div");
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, name), this.buttons, this.about),
      section("Budgets", "Used and left now, at all agents together.", this.budgets),
      section("Keys", "By identifier, the beginning of the key. A key itself is shown once, when it is created.", this.keys));
  }

  update() {}

  async refresh() {
    try {
      const [tenant, keys, budgets] = await Promise.all([get(path(this.name)), get(path(this.name, "/keys?limit=100")),
        get(`/v1/budgets?${new URLSearchParams({ tenant: this.name })}`).catch(() => null)]);
      this.#show(tenant, keys.items);
      show(this.budgets, budgets === null ? h("p", { class: "hint" }, "No control plane leads, so that nothing is known of them.")
        : table("Budgets", ["budget", "of", "in", "limit", "used", "left"], budgets.budgets.map((each) => [
          each.unit.replaceAll("_", " "), each.key_id || "tenant", each.region || "fleet", amount(each.limit), amount(each.used),
          h("span", { class: each.left > 0 ? "" : "bad" }, amount(Math.max(0, each.left)))]), "The tenant has no budget."));
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.buttons.hidden = true;
      show(this.about, h("p", { class: "bad" }, error.message));
      show(this.keys);
      show(this.budgets);
    }
  }

  #show(tenant, keys) {
    const acts = mayAct(this.caller) && tenant.source === "api";
    this.#offer(tenant, acts);
    show(this.about, tenant.problem && h("p", { class: "bad" }, `${tenant.problem}.`), facts({
      Source: tenant.source, Tier: tenant.tier, "Data class": tenant.data_class, Priority: String(tenant.priority), State: state(tenant),
      Budgets: limits(tenant.budgets), "Budgets of tier and quota": limits(tenant.tier_budgets), Created: at(tenant.created_at) || null, Note: tenant.note || null,
    }));
    show(this.keys, table("Keys", ["key", "state", "created", "expires", "revoked", "budgets", "note", ...(acts ? [""] : [])], keys.map((key) => [
      key.id, h("span", { class: key.state === "valid" ? "good" : "bad" }, key.state), at(key.created_at), at(key.expires_at), at(key.revoked_at),
      limits(key.budgets), key.note,
      ...(acts ? [key.state === "valid" ? h("span", {}, actionButton("Rotate…", () => rotating(this.name, key)), " ", actionButton("Revoke…", () => revoking(this.name, key))) : ""] : [])]),
    "The tenant has no key."));
  }

  /** Replaces the buttons only when other actions are possible, so that the focus stays. */
  #offer(tenant, acts) {
    this.buttons.hidden = !acts;
    if (this.offered === `${acts} ${tenant.suspended}`) return;
    this.offered = `${acts} ${tenant.suspended}`;
    this.buttons.replaceChildren(actionButton("Create a key…", () => keying(this.name)),
      actionButton(tenant.suspended ? "Resume…" : "Suspend…", () => suspending(this.name, !tenant.suspended)),
      this.caller.role === "admin" ? actionButton("Delete…", () => deleting(this.name)) : "");
  }
}

const said = (text) => h("div", { class: "preview" }, h("p", {}, text));
const shownOnce = (made) => `${made.key} is the key. It is shown once: copy it now.`;

function creating() {
  const name = h("input", { required: true, maxlength: "63", autocomplete: "off" });
  const tier = h("input", { required: true, maxlength: "63", autocomplete: "off" });
  const note = h("input", { maxlength: "200", autocomplete: "off" });
  return {
    title: "Create a tenant",
    confirm: "Create",
    fields: { Name: name, Tier: tier, Note: note },
    done: "Created.",
    preview: async () => [said(`${name.value} would have the rules and budgets of the tier ${tier.value}, and no key yet.`), null],
    act: (reason) => post("/v1/tenants", { name: name.value.trim(), tier: tier.value.trim(), note: note.value.trim(), reason }),
  };
}

function keying(tenant) {
  const note = h("input", { maxlength: "200", autocomplete: "off" });
  const days = h("input", { type: "number", min: "1", max: "3660", placeholder: "never" });
  return {
    title: `Create a key of ${tenant}`,
    confirm: "Create",
    fields: { Note: note, "Expires after days": days },
    done: shownOnce,
    preview: async () => [said("Agents accept the key within a second. It is shown here once."), null],
    act: (reason) => post(path(tenant, "/keys"), { note: note.value.trim(), expires_in_s: days.value ? Number(days.value) * 86400 : null, reason }),
  };
}

function rotating(tenant, key) {
  const hours = h("input", { type: "number", min: "0", max: "2160", value: "24", required: true });
  return {
    title: `Rotate ${key.id}`,
    confirm: "Rotate",
    fields: { "Old key expires after hours": hours },
    done: shownOnce,
    preview: async () => [said(`A new key is created. ${key.id} stays valid for ${hours.value} h.`), null],
    act: (reason) => post(path(tenant, `/keys/${encodeURIComponent(key.id)}/rotate`), { overlap_s: Number(hours.value) * 3600, reason }),
  };
}

function revoking(tenant, key) {
  return {
    title: `Revoke ${key.id}`,
    confirm: "Revoke",
    done: "Revoked.",
    preview: async () => [said("Agents refuse the key within a second and end its open requests. This cannot be undone: create another key."), null],
    act: (reason) => remove(`${path(tenant, `/keys/${encodeURIComponent(key.id)}`)}?${new URLSearchParams({ reason })}`),
  };
}

function suspending(tenant, isSuspended) {
  return {
    title: `${isSuspended ? "Suspend" : "Resume"} ${tenant}`,
    confirm: isSuspended ? "Suspend" : "Resume",
    done: isSuspended ? "Suspended." : "Resumed.",
    preview: async () => [said(isSuspended ? "Agents refuse the tenant's requests within a second and end the open ones. Its keys stay."
      : "The tenant's keys are accepted again."), null],
    act: (reason) => post(path(tenant, isSuspended ? "/suspend" : "/resume"), { reason }),
  };
}

function deleting(tenant) {
  return {
    title: `Delete ${tenant}`,
    confirm: "Delete",
    done: "Deleted.",
    preview: async () => {
      const { content, etag } = await getWithEtag(path(tenant));
      return [said(`Its ${content.keys} valid keys are revoked for good.`), etag];
    },
    act: (reason, etag) => remove(`${path(tenant)}?${new URLSearchParams({ reason })}`, undefined, { "if-match": etag }),
  };
}
