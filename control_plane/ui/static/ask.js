// Why a request runs where it runs, and what the loss of regions or another policy would do.

import { ApiError, post } from "./api.js";
import { consequences } from "./actions.js";
import { h, section, table } from "./dom.js";
import { models } from "./fleet.js";
import { percent, shortDigest } from "./format.js";

export class AskView {
  constructor() {
    this.title = "Ask";
    this.fields = {
      origin: h("select", { name: "origin", required: true }),
      model: h("select", { name: "model", required: true }),
      tenant: h("input", { name: "tenant", placeholder: "without: no API key", autocomplete: "off" }),
      client: h("input", { name: "client", placeholder: "DE, or 198.51.100.7", autocomplete: "off" }),
    };
    this.answer = h("div", { "aria-live": "polite" });
    this.explainForm = h("form", { class: "action" }, Object.entries({
      origin: "Region that receives it", model: "Model", tenant: "Tenant", client: "Client's country or address",
    }).map(([name, label]) => h("label", {}, label, " ", this.fields[name])), h("button", { type: "submit" }, "Explain"));
    this.explainForm.addEventListener("submit", (event) => (event.preventDefault(), this.#show(this.answer, () => this.#explain())));
    this.lost = h("fieldset", {}, h("legend", {}, "Regions that fail"));
    this.files = h("input", { type: "file", multiple: true, accept: ".yaml,.yml" });
    this.pasted = h("textarea", { rows: "6", cols: "80", spellcheck: "false", placeholder: "documents of a complete bundle, separated by ---" });
    this.consequence = h("div", { "aria-live": "polite" });
    this.whatIf = h("form", { class: "action" }, this.lost,
      h("fieldset", {}, h("legend", {}, "Candidate policy (without: the policy in force)"),
        h("label", {}, "Files of the bundle ", this.files), h("label", {}, "or pasted ", this.pasted)),
      h("button", { type: "submit" }, "Show what would move"));
    this.whatIf.addEventListener("submit", (event) => (event.preventDefault(), this.#show(this.consequence, () => this.#evaluate())));
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, "Ask")),
      section("Where would a request run, and why?", "Nothing is sent. The control plane calls the functions that agents decide with.", this.explainForm, this.answer),
      section("What if?", "Regions fail, or another policy is in force: the same demand before and after, by the planner that serves the fleet, with the overrides and windows of now. Nothing is changed.", this.whatIf, this.consequence));
  }

  update(status) {
    const regions = status.regions.map((region) => region.name);
    const names = models(status);
    if (this.known === `${regions}|${names}`) return;
    this.known = `${regions}|${names}`;
    fill(this.fields.origin, regions);
    fill(this.fields.model, names);
    const chosen = new Set(this.#chosen());
    this.lost.replaceChildren(h("legend", {}, "Regions that fail"), ...regions.map((name) =>
      h("label", { class: "check" }, h("input", { type: "checkbox", value: name, checked: chosen.has(name) }), name)));
  }

  #chosen() {
    return [...this.lost.querySelectorAll("input:checked")].map((box) => box.value);
  }

  async #show(where, work) {
    where.replaceChildren("…");
    try {
      where.replaceChildren(await work());
    } catch (error) {
      if (!(error instanceof ApiError) && !(error instanceof TypeError)) throw error;
      where.replaceChildren(h("p", { class: "bad" }, error instanceof ApiError ? error.message : "The control plane does not answer."),
        error.problem?.errors?.length ? h("ul", {}, error.problem.errors.map((each) => h("li", {}, each.problem ?? each))) : "");
    }
  }

  async #evaluate() {
    const lost = this.#chosen();
    const files = Object.fromEntries(await Promise.all([...this.files.files].map(async (file) => [file.name, await file.text()])));
    if (this.pasted.value.trim()) files["pasted.yaml"] = this.pasted.value;
    const hasPolicy = Object.keys(files).length > 0;
    if (!lost.length && !hasPolicy) return h("p", { class: "empty" }, "Choose at least one region, or give a policy.");
    const [node] = await consequences({ lost, ...(hasPolicy ? { files } : {}) });
    return node;
  }

  async #explain() {
    const { origin, model, tenant, client } = this.fields;
    const place = client.value.trim();
    const country = /^[a-z]{2}$/i.test(place);
    const { explanation } = await post("/v1/explain", {
      origin: origin.value, model: model.value,
      ...(tenant.value.trim() ? { tenant: tenant.value.trim() } : {}),
      ...(place ? (country ? { country: place.toUpperCase() } : { ip: place }) : {}),
    });
    const rules = explanation.rules.map((rule) => [rule.name, rule.source,
      rule.applies === null ? "cannot be decided: the location is unknown" : rule.applies ? "applies" : "does not apply",
      [rule.allows && `allows ${rule.allows.join(", ") || "no region"}`, rule.denies.length && `denies ${rule.denies.join(", ")}`].filter(Boolean).join("; ")]);
    return h("div", {},
      explanation.refusal && h("p", { class: "bad" }, `Refused: ${explanation.refusal.reason}. ${explanation.refusal.detail}`),
      h("p", { class: "lead" }, explanation.residency === null ? "" : `Residency class ${explanation.residency}.`,
        ` Policy ${shortDigest(explanation.policy_digest)}, plan ${explanation.plan_generation ?? "none"}.`),
      table("Regions", ["region", "verdict", "chance", "reasons"], explanation.regions.map((each) => [each.region,
        h("span", { class: `verdict ${each.verdict}` }, each.verdict), percent(each.chance),
        h("ul", {}, each.reasons.map((reason) => h("li", {}, `${reason.reason}${reason.detail ? `: ${reason.detail}` : ""}`)), each.skew && h("li", {}, `differs: ${each.skew}`))])),
      table("Residency rules", ["rule", "where", "", "effect"], rules, "No residency rule applies."));
  }
}

function fill(select, values) {
  const before = select.value;
  select.replaceChildren(...values.map((value) => h("option", { value }, value)));
  if (values.includes(before)) select.value = before;
}
