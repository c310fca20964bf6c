// The status of the fleet, put together from the parts that the control plane streams.

export class LiveStatus {
  #parts = new Map();

  /** Applies one update: {parts, gone}. The first one of a stream is complete. */
  apply({ parts, gone }, isFirst) {
    if (isFirst) this.#parts.clear();
    for (const [name, value] of Object.entries(parts)) this.#parts.set(name, value);
    for (const name of gone) this.#parts.delete(name);
    this.receivedAt = performance.now();
    this.status = this.#assemble();
  }

  /** An event about a region comes before the next update. */
  regionChanged({ region, after }) {
    const known = this.#parts.get(`regions/${region}`);
    if (!known || known.state === after) return false;
    this.#parts.set(`regions/${region}`, { ...known, state: after, state_age_s: 0 });
    this.status = this.#assemble();
    return true;
  }

  #assemble() {
    const status = { regions: [], arcs: [] };
    for (const [name, value] of this.#parts) {
      if (name.startsWith("regions/")) status.regions.push(value);
      else if (name.startsWith("arcs/")) status.arcs.push(...value);
      else status[name] = value;
    }
    status.regions.sort((a, b) => (a.name < b.name ? -1 : 1));
    return status;
  }
}
