// Draws the report of a run: figures, the operators' map with playback, a timeline, tables, and the checks.

import { facts, h, s, section, show, table, wide } from "./dom.js";
import { count, duration, milliseconds } from "./format.js";
import { FleetMap, legend } from "./map.js";

const report = JSON.parse(document.getElementById("report").textContent);
const { run, regions } = report;
const names = regions.map(({ name }) => name).sort();
const colour = (name) => `var(--region-${names.indexOf(name) % 8})`;

/** A time of the run; one that is rounded to 0 has no sign. */
const clock = (at_s) => `${(Math.round(10 * at_s) / 10 || 0).toFixed(1)} s`;

/** Seconds of the run that are shown in a second, and seconds before the moment whose requests are shown. */
const [SPEED, WINDOW_S] = [4, 2];

function head() {
  const { requests, images, failover, checks, sites } = report;
  const failed = checks.filter(({ passed }) => !passed);
  const countries = new Set(sites.map(({ country }) => country)).size;
  const killed = failover.region === report.surge_region ? "then the region was killed" : `then ${failover.region} was killed`;
  const figures = {
    "requests answered": `${count(requests.ok)} of ${count(requests.total)}`,
    "image jobs answered": `${images.ok} of ${images.total}`,
    [`residency violations in ${count(report.residency.checked)} checked`]: report.residency.violations,
    "requests spilled over during the surge": report.spillover.in_surge,
    [`until the last attempt at the killed ${failover.region}`]: failover.rerouted_s === null ? "no attempt" : duration(failover.rerouted_s),
    "requests lost before an engine started them": failover.lost_not_started,
    "streams of the killed region completed by another region": failover.streams_continued,
    "until failback of the region was complete": duration(report.failback.seconds),
    "requests failed without control plane, etcd, Redis": report.control_plane_loss.failed_requests,
  };
  return [
    h("header", {}, h("h1", { class: failed.length ? "bad" : "good" }, `${failed.length ? "✗" : "✓"} ${document.title.replace("Penstock: ", "")}`)),
    section("Penstock: a planet on one machine", "",
      h("p", { class: "lead" }, `${requests.total} chats and ${images.total} image jobs from ${sites.length} cities in ${countries} countries were sent to ` +
        `${regions.length} regions of real processes on one machine. A surge hit ${report.surge_region}; ${killed} and restarted; then the leading ` +
        "control plane, etcd and Redis were killed."),
      requests.unanswered.length > 0 && h("p", { class: "lead" }, failed.length ? "Not answered: " : "Not answered, without a broken promise: ",
        requests.unanswered.join("; "), ". No request is promised to survive the region that runs it; none may be lost that no engine has begun."),
      failed.map(({ name, says }) => h("p", { class: "bad" }, h("b", {}, name), `: ${says}`)),
      h("dl", { class: "totals" }, Object.entries(figures).map(([what, value]) => h("div", {}, h("dt", {}, what), h("dd", {}, value))))),
  ];
}

const stateAt = (name, t) => {
  const { region, killed_s, ready_s, ramped_s } = run.lost;
  if (t === null || name !== region || killed_s === null || t < killed_s) return "healthy";
  if (ready_s === null || t < ready_s) return "failed";
  return t < ramped_s ? "recovering" : "healthy";
};

/** Group rows by a key, as pairs of a row of the group and the number of its rows. */
function tally(rows, keyOf) {
  const found = new Map();
  for (const row of rows) found.set(keyOf(row), [row, (found.get(keyOf(row))?.[1] ?? 0) + 1]);
  return [...found.values()];
}

class Player {
  constructor() {
    this.map = new FleetMap((name) => document.getElementById(`row ${name}`).scrollIntoView({ behavior: "smooth", block: "center" }));
    this.button = h("button", { type: "button", onclick: () => this.#play(!this.playing) });
    this.seek = h("input", { type: "range", min: 0, max: run.duration_s, step: 0.1, value: 0, "aria-label": "Time in the run", oninput: () => this.goTo(Number(this.seek.value)) });
    this.clock = h("output");
    this.caption = h("p", { class: "hint" });
    this.regions = h("div");
    this.onMoment = () => undefined;
  }

  /** Stop at a time (s) of the run; null shows the whole run. */
  goTo(t) {
    this.#play(false);
    this.#draw(t);
  }

  #play(playing) {
    this.playing = playing;
    this.button.textContent = playing ? "Pause" : "Play the run";
    if (!playing) return;
    let [t, before] = [(this.t ?? run.duration_s) >= run.duration_s - 0.2 ? 0 : this.t, performance.now()];
    const frame = (now) => {
      if (!this.playing) return;
      t += SPEED * (now - before) / 1000;
      before = now;
      if (t >= run.duration_s) return this.goTo(null);
      this.#draw(t);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  #draw(t) {
    this.t = t;
    const span = t === null ? run.duration_s : WINDOW_S;
    const served = run.requests.filter((each) => each.ok && (t === null || (each.due_s <= t && each.due_s > t - span)));
    const running = t === null ? served : run.requests.filter((each) => each.due_s <= t && t < each.due_s + (each.e2e_s ?? 0.5));
    // A stream of a failed region runs elsewhere, although the head of its response names the region.
    const at = (name) => (stateAt(name, t) === "failed" ? [] : running.filter(({ server }) => server === name));
    this.map.update(
      regions.map((region) => ({
        ...region, state: stateAt(region.name, t), unready_count: 0,
        pools: [{ model: "all", slots: region.engines.reduce((sum, { max_num_seqs: slots }) => sum + slots, 0), in_flight: t === null ? 0 : at(region.name).length, shares_slots_with: [] }],
        demand: [{ model: "all", requests_per_s: served.filter(({ home }) => home === region.name).length / span }],
      })),
      tally(served, ({ home, server, kind }) => `${home}\n${server}\n${kind}`)
        .map(([{ home, server, kind }, n]) => ({ origin: home, server, why: kind, perS: n / span, text: `${n} requests` })),
      { clients: tally(served, ({ country }) => country).map(([{ country }, n]) => ({ country, perS: n / span })) });
    show(this.regions, table("Regions", ["region", "city", "state", t === null ? "served for itself" : "running, its own", "for other regions"],
      [...regions].sort((a, b) => a.name.localeCompare(b.name)).map(({ name, city }) => [
        h("span", {}, h("span", { class: "swatch", style: `border-color:${colour(name)}` }), name), city, stateAt(name, t),
        at(name).filter(({ home }) => home === name).length, at(name).filter(({ home }) => home !== name).length])));
    this.clock.textContent = t === null ? "whole run" : clock(t);
    this.seek.value = t ?? 0;
    const event = report.events.filter(({ at_s }) => t !== null && at_s <= t).pop();
    this.caption.textContent = [report.phases.filter(({ from_s }) => t !== null && from_s <= t).pop()?.title ?? "All requests of the run.", event?.text].filter(Boolean).join(" · ");
    this.onMoment(t);
  }

  section() {
    return section("Flows", "Lines lead from the home region of requests to the region that served them; circles are clients by country.",
      this.map.element, legend(), h("div", { class: "player" }, this.button, this.seek, this.clock), this.caption, this.regions);
  }
}

const [LEFT, WIDTH, TOP, ROW, GAP, STEP_S, SIGMA_S] = [104, 1180, 30, 64, 14, 0.25, 0.7];
const x = (at_s) => LEFT + (WIDTH - LEFT) * Math.min(at_s, run.duration_s) / run.duration_s;

/** Answered requests per second of a home region by serving region, every STEP_S, smoothed by a Gaussian kernel. */
function rates(home) {
  const steps = Math.floor(run.duration_s / STEP_S) + 1, reach = Math.ceil(3 * SIGMA_S / STEP_S);
  const byServer = new Map([home, ...names.filter((name) => name !== home)].map((name) => [name, new Array(steps).fill(0)]));
  for (const { due_s, server } of run.requests.filter((each) => each.ok && each.home === home)) {
    const middle = Math.round(due_s / STEP_S), row = byServer.get(server);
    for (let step = Math.max(0, middle - reach); step <= Math.min(steps - 1, middle + reach); step += 1) {
      row[step] += Math.exp(-0.5 * ((step - middle) * STEP_S / SIGMA_S) ** 2) / (SIGMA_S * Math.sqrt(2 * Math.PI));
    }
  }
  return byServer;
}

function timeline(player) {
  const rows = names.map((home) => [home, rates(home)]);
  const sums = rows.flatMap(([, byServer]) => [...byServer.values()][0].map((_, step) => [...byServer.values()].reduce((sum, row) => sum + row[step], 0)));
  const most = Math.max(1, ...sums), bottom = TOP + rows.length * (ROW + GAP);
  const playhead = s("line", { class: "playhead", y1: TOP, y2: bottom, visibility: "hidden" });
  player.onMoment = (t) => {
    playhead.setAttribute("visibility", t === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) playhead.setAttribute(end, x(t ?? 0));
  };
  const svg = s("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${bottom + 24}`, role: "img", "aria-label": "Home demand of each region over time, by serving region" },
    report.phases.map(({ title, from_s, to_s }, index) => [
      index % 2 === 0 && s("rect", { class: "band", x: x(from_s), y: 0, width: x(to_s) - x(from_s), height: bottom }),
      s("text", { x: x(from_s) + 6, y: 14 }, title)]),
    rows.map(([home, byServer], index) => areas(home, byServer, TOP + (index + 1) * (ROW + GAP) - GAP, most)),
    report.events.map(({ at_s, text, kind }) => s("line", { class: /killed|exit/.test(kind) ? "event bad" : "event", x1: x(at_s), x2: x(at_s), y1: TOP - 8, y2: bottom },
      s("title", {}, `${clock(at_s)}: ${text}`))),
    Array.from({ length: Math.floor(run.duration_s / 10) }, (_, index) => s("text", { x: x(10 * index), y: bottom + 18, "text-anchor": "middle" }, `${10 * index} s`)),
    playhead);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    player.goTo(Math.max(0, Math.min(run.duration_s, ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT) * run.duration_s)));
  });
  return section("Timeline", "Each row shows the answered requests per second of one home region; the colour is the serving region. A red cross is an unanswered request. Click to see a moment on the map.",
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Timeline" }, svg), h("ol", { class: "events" }, report.events.map(({ at_s, text, kind }) => h("li", { class: /killed|exit/.test(kind) ? "bad" : null }, h("time", {}, `${clock(at_s)} `), text))));
}

function areas(home, byServer, base, most) {
  const y = (value) => base - ROW * value / most;
  let below = [...byServer.values()][0].map(() => 0);
  const drawn = [];
  for (const [server, row] of byServer) {
    const above = below.map((low, step) => low + row[step]);
    const edge = (values) => values.map((value, step) => `${x(step * STEP_S).toFixed(1)} ${y(value).toFixed(1)}`);
    if (Math.max(...row) > 0) drawn.push(s("path", { class: "area", fill: colour(server), d: `M${[...edge(above), ...edge(below).reverse()].join("L")}Z` }));
    below = above;
  }
  const crosses = run.requests.filter((each) => !each.ok && each.home === home).map(({ due_s }) => `M${x(due_s) - 3} ${base - ROW + 5}l6 6m0-6l-6 6`).join("");
  return s("g", { id: `row ${home}` }, s("circle", { cx: 6, cy: base - 22, r: 5, fill: colour(home) }), s("text", { class: "name", x: 17, y: base - 18 }, home),
    s("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: base, y2: base }), drawn, s("path", { class: "failed", d: crosses }));
}

/** A table of answered requests: rows are home regions, columns the regions that served them. */
const served = (title, counts) => h("div", {}, h("h3", {}, title), table(title, ["home", ...names],
  names.map((home) => [home, ...names.map((server) => {
    const n = counts[home]?.[server] ?? 0, total = Object.values(counts[home] ?? {}).reduce((a, b) => a + b, 0);
    return n && h("span", { title: `${n} of ${total} requests of ${home}`, style: `padding:2px 8px;border-radius:6px;background:color-mix(in srgb, ${colour(server)} ${Math.round(12 + 50 * n / total)}%, transparent)` }, n);
  })])));

function details() {
  const { images, latency, definitions, environment } = report;
  const ms = (value) => (value === null ? "–" : milliseconds(value));
  return [
    section("Flows by phase", "Rows are home regions, columns serving regions: what is off the diagonal was served away from home.",
      h("div", { class: "tables" }, report.phases.map(({ title, who_served_whom: counts }) => served(title, counts)))),
    section("Images", `Jobs of a text-to-image service, one at a time on each engine, under the same residency rules: ${images.bound_to_some_regions} of ${images.total} were ` +
      `restricted to some regions, and ${images.outside_residency} ran outside them. Agents accounted ${count(images.megapixel_steps_accounted)} of ${count(images.megapixel_steps)} megapixel ` +
      `steps. End to end: p50 ${duration(images.e2e_p50_s)}, p99 ${duration(images.e2e_p99_s)}.`, served("Whole run", images.who_served_whom)),
    section("Latency", "From the scheduled start of a request to its first and its last token, over the whole run.",
      table("Latency", ["home region", "requests", "first token p50", "p99", "end to end p50", "p99"], Object.entries(latency).map(([name, row]) =>
        [name, row.requests, ms(row.ttft_p50_ms), ms(row.ttft_p99_ms), ms(row.e2e_p50_ms), ms(row.e2e_p99_ms)]))),
    wide("Checks", "The exit code is 0 only if every check passed.", table("Checks", ["check", "", "result"], report.checks.map(({ name, passed, says }) =>
      [name, h("span", { class: passed ? "good" : "bad" }, passed ? "passed" : "failed"), says]), "None.", Infinity)),
    wide("Definitions and environment", "", facts({ Workload: report.workload, Geography: report.geography, Network: report.network, ...definitions, Made: report.made_at, ...environment })),
  ];
}

const player = new Player();
const main = h("main", {}, head(), player.section(), timeline(player), details());
document.body.append(main);
player.goTo(null);
