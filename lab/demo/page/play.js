// Plays the run back: the map's arcs and regions, the cards and the playhead at any moment. No library, no network.
"use strict";
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const $ = (id) => document.getElementById(id);
  const NS = "http://www.w3.org/2000/svg";
  const SPEED = 4; // Demo seconds shown in a second.
  const TRAIL_S = 1.6; // For how long a request's arc glows after it was due, in demo seconds.
  const [DUE, SITE, HOME, SERVER, TTFT, E2E, OK] = [0, 1, 2, 3, 4, 5, 6];
  const arcs = $("arcs"), sparks = $("sparks"), seek = $("seek"), clock = $("clock"), caption = $("caption");
  const wholeRun = arcs.innerHTML;
  const colour = (region) => `var(--${run.regions[region]})`;
  const make = (parent, name, attributes) => {
    const element = parent.appendChild(document.createElementNS(NS, name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const paths = run.arcs.map((row) => row.map((d) => {
    const path = document.createElementNS(NS, "path");
    path.setAttribute("d", d);
    return path;
  }));

  const stateOf = (region, t) => {
    const [name, killed, ready, ramped] = run.dead;
    if (region !== name || killed === null || t < killed) return ["serving", ""];
    if (ready === null || t < ready) return ["dead", "dead"];
    return t < ramped ? ["returning", "back"] : ["serving", ""];
  };

  function cards(within, t) {
    run.regions.forEach((name, index) => {
      const own = within.filter((r) => r[SERVER] === index && r[HOME] === index).length;
      const others = run.regions.map((_, home) => home === index ? 0 : within.filter((r) => r[SERVER] === index && r[HOME] === home).length);
      const foreign = others.reduce((a, b) => a + b, 0);
      const [word, className] = t === null ? ["", ""] : stateOf(name, t);
      const card = document.querySelector(`.card[data-region="${name}"]`);
      card.className = "card " + className;
      card.querySelector(".state").textContent = word;
      card.querySelector(".doing").textContent = t === null
        ? `${own} for itself, ${foreign} for others` : `running ${own} own, ${foreign} for others`;
      const all = own + foreign, scale = t === null ? all : Math.max(all, 14);
      card.querySelector(".meter").innerHTML = [own, ...others].map((n, i) =>
        n ? `<s style="width:${100 * n / scale}%;background:${i === 0 ? colour(index) : colour(i - 1)}"></s>` : "").join("");
      document.querySelectorAll(`.region[data-region="${name}"]`).forEach((group) => {
        group.setAttribute("class", "region " + className);
        group.querySelector(".halo").setAttribute("r", t === null ? 13 : 9 + 3.4 * Math.sqrt(all));
      });
    });
  }

  function showWhole() {
    arcs.innerHTML = wholeRun;
    sparks.replaceChildren();
    clock.textContent = "whole run";
    caption.textContent = "All requests of the run.";
    $("playhead").classList.remove("on");
    cards(run.requests.filter((r) => r[OK]), null);
  }

  function showMoment(t) {
    seek.value = t;
    clock.textContent = `${t.toFixed(1)} s`;
    const x = run.left + (run.width - run.left) * t / run.duration;
    for (const end of ["x1", "x2"]) $("playhead").setAttribute(end, x);
    $("playhead").classList.add("on");
    const phase = run.phases.filter(([from]) => from <= t).pop();
    const event = run.events.filter(([at]) => at <= t && at >= phase[0] - 0.01).pop();
    caption.innerHTML = "<b></b><span></span>";
    caption.firstChild.textContent = phase[1];
    caption.lastChild.textContent = event ? ` · ${event[1]}` : "";
    arcs.replaceChildren();
    sparks.replaceChildren();
    const glow = new Map();
    for (const r of run.requests) {
      if (r[DUE] > t) break;
      if (r[SERVER] < 0 || r[SITE] < 0 || t - r[DUE] > TRAIL_S) continue;
      const key = r[SITE] * 100 + r[SERVER];
      const age = (t - r[DUE]) / TRAIL_S;
      const old = glow.get(key) || { n: 0, age: 1 };
      glow.set(key, { n: old.n + 1, age: Math.min(old.age, age), site: r[SITE], server: r[SERVER] });
      const path = paths[r[SITE]][r[SERVER]];
      const point = path.getPointAtLength(path.getTotalLength() * Math.min(1, age * 1.25));
      make(sparks, "circle", { cx: point.x, cy: point.y, r: 2.8, fill: colour(r[SERVER]), opacity: age > 0.8 ? (1 - age) * 5 : 1 });
    }
    for (const { n, age, site, server } of glow.values()) {
      make(arcs, "path", { d: run.arcs[site][server], stroke: colour(server), "stroke-width": 1 + 1.1 * Math.sqrt(n), style: `opacity:${0.75 * (1 - age)}` });
    }
    cards(run.requests.filter((r) => r[SERVER] >= 0 && r[DUE] <= t && t < r[DUE] + (r[E2E] ?? 0.5)), t);
  }

  let playing = false, at = 0, before = 0;
  function frame(now) {
    if (!playing) return;
    at += SPEED * (now - before) / 1000;
    before = now;
    if (at >= run.duration) return stop();
    showMoment(at);
    requestAnimationFrame(frame);
  }
  function play() {
    if (at >= run.duration) at = 0;
    playing = true;
    before = performance.now();
    $("play").textContent = "❚❚";
    requestAnimationFrame(frame);
  }
  function stop() {
    playing = false;
    $("play").textContent = "▶";
    if (at >= run.duration) { seek.value = 0; at = 0; showWhole(); }
  }
  const goTo = (t) => { at = Math.max(0, Math.min(run.duration - 0.01, t)); showMoment(at); };
  $("play").addEventListener("click", () => (playing ? stop() : play()));
  seek.addEventListener("input", () => { stop(); goTo(Number(seek.value)); });

  const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
  const sense = $("sense");
  const moment = (event) => {
    const box = sense.getBoundingClientRect();
    return run.duration * (event.clientX - box.left) / box.width;
  };
  sense.addEventListener("mousemove", (event) => {
    const t = moment(event);
    const near = run.requests.filter((r) => Math.abs(r[DUE] - t) < 1 && r[OK]);
    const away = near.filter((r) => r[HOME] !== r[SERVER]).length;
    const ttft = near.map((r) => r[TTFT]).filter((s) => s !== null).sort((a, b) => a - b);
    const lines = [`${t.toFixed(1)} s`, `${(near.length / 2).toFixed(1)} answered requests per second`, `${away} of ${near.length} away from home`];
    if (ttft.length) lines.push(`first token: median ${Math.round(1000 * ttft[ttft.length >> 1])} ms`);
    const event_ = run.events.find(([when]) => Math.abs(when - t) < 0.6);
    if (event_) lines.push(event_[1]);
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 260)}px`;
    tip.style.top = `${event.clientY + 14}px`;
    tip.style.opacity = 1;
  });
  sense.addEventListener("mouseleave", () => { tip.style.opacity = 0; });
  sense.addEventListener("click", (event) => { stop(); goTo(moment(event)); });

  showWhole();
  const wanted = new URLSearchParams(location.search).get("t");
  if (wanted !== null) goTo(Number(wanted));
  else if (!matchMedia("(prefers-reduced-motion: reduce)").matches) setTimeout(play, 1500);
})();
