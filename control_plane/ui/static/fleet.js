// The fleet's state as pages use it, from /v1/status. Pure: no requests, no elements.

export const REASONS = {
  home: "served at home",
  spillover: "spillover: home is full, or another region is better",
  failover: "failover: home has failed or drains",
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
  for (const arc of status.arcs) {
    if (model && arc.model !== model) continue;
    const perS = (demand.get(`${arc.origin}\n${arc.model}\n${arc.residency}`) ?? 0) * arc.share;
    const key = `${arc.origin}\n${arc.server}\n${arc.why}`;
    const flow = found.get(key) ?? { origin: arc.origin, server: arc.server, why: arc.why, perS: 0, models: new Set() };
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
  return status.overrides.filter((each) => each.override.region === name && each.phase !== "ended");
}
