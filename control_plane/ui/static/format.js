// Numbers with units, and times in the reader's zone with UTC beside them.

const number = (digits) => new Intl.NumberFormat(undefined, { maximumFractionDigits: digits });
const [whole, one] = [number(0), number(1)];

/** A number and its unit, which stay on one line. */
const withUnit = (value, unit) => `${value}\u00a0${unit}`;

export const count = (value) => whole.format(value);
export const rate = (value) => withUnit((value < 10 ? one : whole).format(value), "requests/s");
export const percent = (value) => withUnit(whole.format(100 * value), "%");
export const milliseconds = (value) => withUnit(whole.format(value), "ms");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  // A value that is rounded to 0 has no sign.
  if (Math.abs(seconds) < 0.05) return withUnit("0", "s");
  if (seconds < 90) return withUnit((seconds < 10 ? one : whole).format(seconds), "s");
  if (seconds < 5400) return withUnit(whole.format(seconds / 60), "min");
  return seconds < 172_800 ? withUnit(one.format(seconds / 3600), "h") : withUnit(whole.format(seconds / 86_400), "days");
}

const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const utc = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", timeStyle: "medium" });

/** Unix time in seconds. */
export function moment(unix) {
  const date = new Date(unix * 1000);
  return `${local.format(date)} (${utc.format(date)} UTC)`;
}

export const shortDigest = (digest) => (digest ? digest.slice(0, 12) : "none");
