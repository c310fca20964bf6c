// Usage of a range of days, from the ledger: by day, model, tenant and region, with what the sums lack.

import { ApiError, get, pause } from "./api.js";
import { h, show, table } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { bar, bars, columns, pending } from "./plots.js";

/** Names that a plot shows; the others are one bar. */
const SHOWN = 15;
/** Pause (ms) before a question is repeated that the control plane had no time for. */
const BUSY_MS = 5000;
const DAY_MS = 86_400_000;

const amount = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const hours = (seconds) => `${amount.format(seconds / 3600)}\u00a0GPU\u00a0h`;

const MEASURES = {
  gpu_cost: ["cost of GPU time", "money"],
  price: ["price that tenants pay", "money"],
  gpu_s: ["GPU time", hours],
  requests: ["requests", count],
  input_tokens: ["input tokens", count],
  output_tokens: ["output tokens", count],
};

const isoDay = (date) => date.toISOString().slice(0, 10);

export class UsageView {
  constructor() {
    this.title = "Usage";
    this.answers = new Map();
    const today = new Date(), read = () => this.#read();
    this.from = h("input", { type: "date", required: true, value: `${isoDay(today).slice(0, 8)}01`, onchange: read });
    this.to = h("input", { type: "date", required: true, value: isoDay(today), onchange: read });
    this.tenant = h("input", { placeholder: "all", autocomplete: "off", onchange: read });
    this.measure = h("select", { onchange: read }, Object.entries(MEASURES).map(([value, [label]]) => h("option", { value }, label)));
    this.problem = h("p", { class: "bad", role: "alert", hidden: true });
    this.totals = h("dl", { class: "totals" });
    this.missing = h("ul", {});
    this.plots = {
      day: pending("By day", "Days of UTC, on which requests ended."),
      model: pending("By model", ""),
      region: pending("By region", "The region that served. Requests that no region served have no name."),
      tenant: pending("By tenant", ""),
      idleByRegion: pending(idleOf("region"), "GPU time of all endpoints of a region, less what requests used, in the time for which agents recorded it."),
      idleByModel: pending(idleOf("model"), "The GPU time of an endpoint of several models counts in equal parts as theirs. What requests for an adapter used has a row with the name of the adapter, without ready GPU time."),
    };
    this.element = h("div", {}, h("section", { class: "wide" }, h("h1", {}, "Usage"),
      h("form", { class: "action", onsubmit: (event) => (event.preventDefault(), this.answers.clear(), read()) },
        h("label", {}, "From ", this.from), h("label", {}, "to ", this.to), h("label", {}, "Tenant ", this.tenant), h("label", {}, "Show ", this.measure),
        h("button", { type: "submit" }, "Read again")),
      this.problem, this.totals, this.missing), h("div", { class: "grid" }, Object.values(this.plots).map((plot) => plot.element)));
    for (const plot of [this.plots.day, this.plots.tenant, this.plots.idleByRegion, this.plots.idleByModel]) plot.element.className = "wide";
    read();
  }

  update() {}

  /** Asks one question after the other: each reads all segments of the days. A later call ends an earlier one. */
  async #read() {
    this.stop?.abort();
    const stop = (this.stop = new AbortController());
    if (!this.from.value || !this.to.value) return;
    this.problem.hidden = true;
    try {
      for (const by of ["day", "model", "tenant", "region"]) {
        const answer = await this.#answer(by, stop.signal);
        if (stop.signal.aborted) return;
        this.#draw(by, answer);
        const idlePlot = { region: this.plots.idleByRegion, model: this.plots.idleByModel }[by];
        idlePlot?.show(idle(by, answer, Boolean(this.tenant.value.trim())));
      }
    } catch (error) {
      if (stop.signal.aborted) return;
      this.problem.hidden = false;
      show(this.problem, error instanceof ApiError ? error.message : "The control plane does not answer.");
      show(this.totals);
      show(this.missing);
      for (const plot of Object.values(this.plots)) plot.show(h("p", { class: "empty" }, "Not known."));
    }
  }

  async #answer(by, signal) {
    const tenant = this.tenant.value.trim();
    const question = new URLSearchParams({ by, from: this.from.value, to: this.to.value, ...(tenant ? { tenant } : {}),
      ...(by === "day" ? {} : { top: SHOWN, order: this.measure.value }) });
    const path = `/v1/usage?${question}`;
    while (!this.answers.has(path)) {
      try {
        this.answers.set(path, await get(path, { signal }));
      } catch (error) {
        if (error.status !== 429) throw error;
        await pause(BUSY_MS, signal);
        signal.throwIfAborted();
      }
    }
    return this.answers.get(path);
  }

  #draw(by, answer) {
    const measure = this.measure.value, [label, unit] = MEASURES[measure];
    const text = unit === "money" ? (value) => `${amount.format(value)}\u00a0${answer.currency}` : unit;
    const rows = [...answer.rows, ...(answer.others ? [answer.others] : [])];
    const point = (row) => ({ name: row === answer.others ? "all others" : row.group[by] || "none", value: row[measure] });
    if (by === "day") {
      this.#total(rows, answer);
      const points = everyDay(this.from.value, this.to.value, rows.map(point));
      this.plots.day.show(rows.length ? columns(`${label} by day`, points, text) : h("p", { class: "empty" }, "No records in this time."),
        rows.length > 0 && h("details", {}, h("summary", {}, "Numbers"), table("Numbers by day", ["day", label], rows.map(point).map(({ name, value }) => [name, text(value)]))));
    } else {
      this.plots[by].show(bars(`${label} by ${by}`, [by, label], rows.map(point), text, rows.reduce((sum, row) => sum + row[measure], 0)));
    }
  }

  #total(rows, answer) {
    const sum = (field) => rows.reduce((total, row) => total + row[field], 0);
    const money = (field) => `${amount.format(sum(field))} ${answer.currency}`;
    const gpuS = sum("gpu_s");
    show(this.totals, Object.entries({
      requests: count(sum("requests")), "input tokens": count(sum("input_tokens")), "output tokens": count(sum("output_tokens")),
      "GPU time": hours(gpuS), "for failed attempts and requests": gpuS ? percent(sum("overhead_gpu_s") / gpuS) : "none",
      "cost of GPU time": money("gpu_cost"), "cost of burst endpoints": money("burst_cost"), "price that tenants pay": money("price"),
    }).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
    show(this.missing, answer.missing.map((line) => h("li", { class: "bad" }, `Missing: ${line}.`)));
  }
}

const idleOf = (by) => `GPU time that served nothing, by ${by}`;

/** A bar for each region or model, of the GPU time that served nothing. */
function idle(by, answer, isOfTenant) {
  if (isOfTenant) return h("p", { class: "empty" }, "Idle GPU time belongs to no tenant.");
  return table(idleOf(by), [by, "idle", "ready", "not ready", "used", `cost of idle time, ${answer.currency}`, "known for"],
    answer.capacity.map((row) => [row.group[by], bar(row.idle_share), hours(row.ready_gpu_s), hours(row.unready_gpu_s), hours(row.used_gpu_s),
      amount.format(row.idle_cost), duration(row.known_s)]), "No agent recorded the GPU time of its endpoints in this time.");
}

/** The points of all days of a range, those without records with 0. */
function everyDay(first, last, points) {
  const values = new Map(points.map(({ name, value }) => [name, value])), days = [];
  for (let at = Date.parse(first); at <= Date.parse(last); at += DAY_MS) days.push(isoDay(new Date(at)));
  return days.map((name) => ({ name, value: values.get(name) ?? 0 }));
}
