// Asynchronous requests and batches of regions, with the forecast of their end.

import { regionLink } from "./alarms.js";
import { h, section, table } from "./dom.js";
import { count, duration, moment } from "./format.js";
import { meter } from "./now.js";

/** Longest list of batches. */
const MAX_ROWS = 50;

/** The section about the jobs of regions; of one region, without its name. Nothing where no region has a job store. */
export function jobs(regions) {
  const known = regions.filter((region) => region.jobs);
  if (!known.length) return null;
  const batches = known.flatMap((region) => region.jobs.batches.map((batch) => ({ region, ...batch })));
  batches.sort((a, b) => (a.expected_completion_at ?? Infinity) - (b.expected_completion_at ?? Infinity));
  return section("Jobs", "Asynchronous requests, and batches that agents run. The forecast goes by the rate so far; it may be after the deadline.",
    table("Asynchronous requests", ["region", "running", "waiting", "the last one starts", "job store"], known.map(({ name, jobs: each }) => [
      regionLink(name), count(each.requests), count(each.waiting_requests),
      each.waiting_requests ? inTime(each.last_request_starts_at, "not known until one has ended") : "none waits",
      each.problem ? h("span", { class: "bad" }, `✗ ${each.problem}`) : "✓ works"])),
    table("Batches", ["region", "batch", "requests done", "failed", "expected end", "deadline"], batches.slice(0, MAX_ROWS).map((batch) => [
      regionLink(batch.region.name), batch.id, meter(batch.total ? (batch.completed + batch.failed) / batch.total : 0, `${count(batch.completed + batch.failed)} of ${count(batch.total)}`),
      count(batch.failed), late(batch), inTime(batch.expires_at, "none")]), "No batch runs."));
}

/** The expected end of a batch, marked if it is after the deadline. */
function late({ expected_completion_at: at, expires_at: deadline }) {
  const text = inTime(at, "not known until one has ended");
  return at && deadline && at > deadline ? h("span", { class: "bad" }, "✗ late: ", text) : text;
}

function inTime(at, otherwise) {
  if (at === null) return otherwise;
  return h("span", { title: moment(at) }, `in ${duration(Math.max(0, at - Date.now() / 1000))}`);
}
