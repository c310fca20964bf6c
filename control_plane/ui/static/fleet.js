// The fleet's state as pages use it, from /v1/status. Pure: no requests, no elements.

export const REASONS = {
  home: "home: the nearest permitted region that has the model",
  spillover: "spillover: home is full, or another region is better",
  failover: "failover: home has failed or cannot serve",
  override: "override: an operator or a maintenance window keeps home from serving",
  failback: "failback: home is returning",
};

/** Requests/s by origin, server and reason: demand times the plan's share. */
export function flows(status, model = "") {
  const demand = new Map();
  for (const region of status.regions) {
    for (const { model, residency, requests_per_s } of region.demand) {
      demand.set(`${region.name}\n${model}\n${residency}`, requests_per_s);
    }
  }
  const found = new Map();
  const emptied = emptiedRegions(status.overrides.filter(({ state }) => state === "active").map(({ override }) => override),
    status.regions.filter((region) => region.state === "failed").map((region) => region.name));
  for (const arc of status.arcs) {
    if (model && arc.model !== model) continue;
    const why = reasonOf(arc, emptied);
    const perS = (demand.get(`${arc.origin}\n${arc.model}\n${arc.residency}`) ?? 0) * arc.share;
    const key = `${arc.origin}\n${arc.server}\n${why}`;
    const flow = found.get(key) ?? { origin: arc.origin, server: arc.server, why, perS: 0, models: new Set() };
    flow.perS += perS;
    flow.models.add(arc.model);
    found.set(key, flow);
  }
  return [...found.values()];
}

/** Slots and requests of a region, over all models or one; slots that several models share count once. */
export function load(region, model = "") {
  let [slots, inFlight, ready, endpoints] = [0, 0, 0, 0];
  const counted = new Set();
  for (const pool of region.pools) {
    if ((model && pool.model !== model) || counted.has(pool.model)) continue;
    slots += pool.slots;
    inFlight += pool.in_flight;
    ready += pool.ready;
    endpoints += pool.endpoints;
    for (const other of pool.shares_slots_with) counted.add(other);
  }
  return { slots, inFlight, ready, endpoints, share: slots ? inFlight / slots : 0 };
}

export const demandOf = (region, model = "") =>
  region.demand.reduce((sum, part) => sum + (!model || part.model === model ? part.requests_per_s : 0), 0);

export const models = (status) =>
  [...new Set(status.regions.flatMap((region) => region.pools.map((pool) => pool.model)))].sort();

/** Whether a drain or another override is in force, by region. */
export function overridesOf(status, name) {
  return status.overrides.filter((each) => each.override.region === name && each.state !== "ended");
}

/** Regions that are up, and that overrides in force ({kind, region}) empty. */
export const emptiedRegions = (overrides, failed) => new Set(overrides.filter(({ kind, region }) => EMPTIES.has(kind) && !failed.includes(region))
  .map(({ region }) => region));

const EMPTIES = new Set(["drain", "fail_over", "weight"]);

/** The reason of an arc: what the plan does for an override is an override, although the plan has one word for both. */
export const reasonOf = ({ origin, why }, emptied) => (why === "failover" && emptied.has(origin) ? "override" : why);

/** Whether a flow leaves its home; demand whose home is another region, which alone has the model, does not. */
export const isAway = ({ origin, server, why }) => origin !== server && why !== "home";

/** Load of one model over all regions. */
export function modelLoad(status, model) {
  const total = { slots: 0, inFlight: 0, ready: 0, endpoints: 0, waiting: 0, demand: 0, isShared: false };
  for (const region of status.regions) {
    for (const pool of region.pools.filter((each) => each.model === model)) {
      total.slots += pool.slots;
      total.inFlight += pool.in_flight;
      total.ready += pool.ready;
      total.endpoints += pool.endpoints;
      total.isShared ||= pool.shares_slots_with.length > 0;
    }
    total.waiting += spilloverOf(region, model).waiting;
    total.demand += demandOf(region, model);
  }
  return total;
}

/** Queue and spill credits of a region, over all models or one. */
export function spilloverOf(region, model = "") {
  const total = { waiting: 0, headroom: 0, granted: 0, held: 0 };
  for (const row of region.spillover) {
    if (!model || row.model === model) for (const name of Object.keys(total)) total[name] += row[name];
  }
  return total;
}

/** Demand by the country of the clients, over all regions, largest first. */
export function countries(status) {
  const total = new Map();
  for (const region of status.regions) {
    for (const { country, requests_per_s: perS } of region.countries) total.set(country, (total.get(country) ?? 0) + perS);
  }
  return [...total].map(([country, perS]) => ({ country, perS })).sort((a, b) => b.perS - a.perS);
}

/** Digest of the policy that every region outside a canary is to apply; the source may offer another one. */
export const inForce = (status) => status.rollout?.in_force || status.policy.digest;

/** Digest of the policy that a region is to apply. */
export function assignedTo(status, region) {
  const { rollout } = status;
  return rollout?.phase.startsWith("canary") && rollout.canary.includes(region) ? rollout.candidate : inForce(status);
}
