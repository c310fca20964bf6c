// The layout of the map, in pixels: regions that would cover each other become one place, flows between places one arc, and
// labels are placed where they cover nothing. Pure: no elements.

/** Distance (px) below which regions become one place. */
const NEAR_PX = 26;
/** Arcs that are drawn at most: the largest. */
export const MAX_ARCS = 40;
/** Width (px) of a character and height (px) of a line of a label. */
const [CHARACTER_PX, LINE_PX] = [7.3, 14];
/** Directions of a label from its place, the preferred ones first, and distances (px) at which it is tried. */
const DIRECTIONS = [[0, 1], [0, -1], [1, 0], [-1, 0], [1, 1], [-1, 1], [1, -1], [-1, -1]];
const DISTANCES_PX = [3, 16, 32, 52, 76];

/** Severity of the states that are not ordinary; a place with several regions has that of the worst that reports. */
export const SEVERITY = { failed: 5, suspect: 4, degraded: 3, draining: 2, recovering: 2, unknown: 1, healthy: 0 };

/**
 * Places by the positions of `nodes` ({name, state, x, y, slots, inFlight, unready}), each with its nodes, the largest first.
 * In order of names, so that the elements of places stay in order.
 */
export function placesOf(nodes, isJoined = true) {
  const places = [];
  for (const node of [...nodes].sort((a, b) => b.slots - a.slots || (a.name < b.name ? -1 : 1))) {
    const near = isJoined && places.find(({ x, y }) => Math.hypot(x - node.x, y - node.y) < NEAR_PX);
    if (near) near.nodes.push(node);
    else places.push({ x: node.x, y: node.y, nodes: [node] });
  }
  const sum = (place, field) => place.nodes.reduce((total, node) => total + node[field], 0);
  for (const place of places) {
    Object.assign(place, { name: place.nodes[0].name, slots: sum(place, "slots"), inFlight: sum(place, "inFlight"), unready: sum(place, "unready") });
    const known = place.nodes.filter(({ state }) => state !== "unknown");
    place.state = known.reduce((worst, { state }) => (SEVERITY[state] > SEVERITY[worst] ? state : worst), known.length ? "healthy" : "unknown");
    place.lines = [place.name + (place.nodes.length > 1 ? ` +${place.nodes.length - 1}` : ""), trouble(place)].filter(Boolean);
  }
  return places.sort((a, b) => (a.name < b.name ? -1 : 1));
}

function trouble({ nodes, state, unready }) {
  const alike = nodes.filter((node) => node.state === state).length;
  if (SEVERITY[state] > 1) return nodes.length > 1 ? `${alike} ${state}` : state;
  if (state === "unknown") return "no report";
  return unready ? `${unready} not ready` : "";
}

/** The largest flows between places, those of a focused place alone if there is one, and what all of them sum up to. */
export function arcsOf(flows, placeOf, focus) {
  const found = new Map();
  for (const flow of flows) {
    const from = placeOf.get(flow.origin), to = placeOf.get(flow.server);
    if (!from || !to || from === to || !flow.perS || (focus && from !== focus && to !== focus)) continue;
    const key = `${from.name}\n${to.name}\n${flow.why}`;
    const arc = found.get(key) ?? { from, to, why: flow.why, perS: 0, flows: [] };
    arc.perS += flow.perS;
    arc.flows.push(flow);
    found.set(key, arc);
  }
  const all = [...found.values()].sort((a, b) => b.perS - a.perS), arcs = all.slice(0, MAX_ARCS);
  const sum = (rows) => rows.reduce((total, { perS }) => total + perS, 0);
  return { arcs, count: all.length, share: all.length ? sum(arcs) / sum(all) : 1 };
}

/** Gives each place in view a `label` ({x, y, anchor, isFar}): the first position that covers no circle and no other label. */
export function placeLabels(all, width, height) {
  const places = all.filter(({ x, y }) => x >= 0 && x <= width && y >= 0 && y <= height);
  const circles = places.map((place) => [place.x - place.radius, place.y - place.radius, place.x + place.radius, place.y + place.radius]);
  const taken = [];
  const covered = (box) => [...circles, ...taken].reduce((sum, other) => sum + overlap(box, other), 0) + outside(box, width, height);
  for (const place of [...places].sort((a, b) => SEVERITY[b.state] - SEVERITY[a.state] || b.slots - a.slots)) {
    const size = [CHARACTER_PX * Math.max(...place.lines.map((line) => line.length)), LINE_PX * place.lines.length];
    let best = null;
    for (const [distance, [dx, dy]] of DISTANCES_PX.flatMap((each) => DIRECTIONS.map((direction) => [each, direction]))) {
      const x = place.x + dx * (place.radius + distance), y = place.y + dy * (place.radius + distance);
      const left = x + (dx - 1) * size[0] / 2, top = y + (dy - 1) * size[1] / 2;
      const box = [left, top, left + size[0], top + size[1]], cover = covered(box);
      if (!best || cover < best.cover) best = { cover, box, x, y: top + LINE_PX - 3, anchor: ["end", "middle", "start"][dx + 1], isFar: distance > DISTANCES_PX[0], edge: y };
      if (!cover) break;
    }
    taken.push(best.box);
    place.label = best;
  }
}

const overlap = ([a, b, c, d], [e, f, g, k]) => Math.max(0, Math.min(c, g) - Math.max(a, e)) * Math.max(0, Math.min(d, k) - Math.max(b, f));
const outside = ([a, b, c, d], width, height) => 1000 * (Math.max(0, -a) + Math.max(0, -b) + Math.max(0, c - width) + Math.max(0, d - height));
