/** Times, amounts and names as people read them. */
import { signal } from "../vendor/preact.js";
import { writeJson } from "./json.js";

/** The time by which ages are shown; updated once a second while the page is visible. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** @param {number} ms */
export function duration(ms) {
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000); // once, before minutes are made of them: there is no "1 min 60 s"
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(seconds % 60).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} days`;
}

/** @param {string | number | null | undefined} at */
export const msOf = (at) => (at === null || at === undefined || at === "" ? null : typeof at === "number" ? at : Date.parse(at));

/** @param {number} then @param {number} at */
export function ago(then, at) {
  const past = at - then;
  if (past < 5000) return "now";
  if (past < 60000) return `${Math.floor(past / 1000)} s ago`;
  if (past < 3600000) return `${Math.floor(past / 60000)} min ago`;
  if (past < 48 * 3600000) return `${Math.floor(past / 3600000)} h ago`;
  return `${Math.floor(past / 86400000)} days ago`;
}

/** Date and 24-hour time in the local time zone, as on the command line: 2026-11-18 14:05:09. @param {number} at */
export function exact(at) {
  const then = new Date(at);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())} ${two(then.getHours())}:${two(then.getMinutes())}:${two(then.getSeconds())}`;
}

/** Costs are never rounded to zero; an unknown cost is a dash. @param {number | null | undefined} usd */
export function money(usd) {
  if (usd === null || usd === undefined) return "–";
  if (usd === 0) return "$0.00";
  if (usd < 0.01) return "< $0.01";
  return usd < 1000 ? `$${usd.toFixed(2)}` : `$${Math.round(usd).toLocaleString("en")}`;
}

/** What was spent: without a token it is nothing, whatever the price. @param {any} usage */
export function cost(usage) {
  if (!usage) return "";
  const tokens = (usage.input_tokens || 0) + (usage.output_tokens || 0);
  return usage.cost_usd === null && !tokens ? "$0.00" : money(usage.cost_usd);
}

/** @param {number | null | undefined} n */
export function amount(n) {
  if (n === null || n === undefined) return "";
  if (n < 10000) return n.toLocaleString("en");
  if (n < 1e6) return `${(n / 1000).toFixed(n < 1e5 ? 1 : 0)} k`;
  return `${(n / 1e6).toFixed(1)} M`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export const counted = (n, one, many) => `${amount(n)} ${n === 1 ? one : many || `${one}s`}`;

/** @param {unknown} value text as it is, anything else as JSON that can be read */
export const asText = (value) => (typeof value === "string" ? value : writeJson(value, 2));

/** The name of a step below the step it belongs to: an item of a map has its index and its own name. @param {string} name */
export const briefName = (name) => name.replace(/^[^ ]*(?=\[\d+\] )/, "");

/** @param {string} path */
export const lastOf = (path) => path.slice(path.lastIndexOf("/") + 1);
