// Numbers and times for people.

const NUMBERS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const whole = (value) => (isNumber(value) ? WHOLE.format(value) : "–");
export const percent = (value) =>
  isNumber(value) ? `${value >= 10 ? Math.round(value) : Math.round(10 * value) / 10}\u00a0%` : "–";

// Three digits: 1,234,567 is 1.23 M.
export function short(value, step = 1000, units = ["", " k", " M", " G", " T"]) {
  if (!isNumber(value)) return "–";
  let power = 0;
  while (Math.abs(value) >= step && power < units.length - 1) {
    value /= step;
    power += 1;
  }
  return `${Math.abs(value) < 1000 ? NUMBERS.format(value) : WHOLE.format(value)}${units[power]}`;
}

export const bytesPerS = (value) =>
  isNumber(value) ? `${short(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"])}/s` : "–";
export const perS = (value) => (isNumber(value) ? `${short(value)}/s` : "–");
export const factor = (value) => (isNumber(value) ? value.toFixed(2) : "–");

// 75 is "1 min 15 s"; the two largest units.
export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 && s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const ago = (ms, now = Date.now()) =>
  isNumber(ms) ? (now - ms < 1500 ? "now" : `${duration((now - ms) / 1000)} ago`) : "never";

const TIME = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const MINUTE = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

export const clock = (ms) => TIME.format(ms);
export const minute = (ms) => MINUTE.format(ms);
// With the day, unless it is today.
export const moment = (ms, now = Date.now()) =>
  DAY.format(ms) === DAY.format(now) ? clock(ms) : `${DAY.format(ms)}, ${clock(ms)}`;

// Any value of `why` as one line.
export function said(value) {
  if (value === null || value === undefined) return "–";
  if (isNumber(value)) return Number.isInteger(value) ? WHOLE.format(value) : NUMBERS.format(value);
  if (Array.isArray(value)) return value.map(said).join(", ") || "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// "msgRateIn" and "msg_rate_in" are "msg rate in".
export const words = (key) =>
  key
    .replace(/_/g, " ")
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase();

// Names without what all of them begin and end with: "b-1.example:8080" and "b-2.example:8080" are "b-1" and "b-2".
export function shortNames(names) {
  if (names.length < 2) return names;
  const common = (lists) => lists[0].findIndex((part, n) => lists.some((list) => list.length <= n + 1 || list[n] !== part));
  const parts = names.map((name) => name.split(/(?=[.:])/));
  const first = common(parts);
  const last = common(parts.map((each) => each.slice(first).reverse()));
  return parts.map((each) => each.slice(first, each.length - last).join("").replace(/^[.:]/, ""));
}
