/** A status is an icon, a word and a colour, everywhere the same three. */
import { html } from "../vendor/preact.js";

/** @type {Record<string, {tone: string, word: string, icon: string}>} */
const STATUSES = {
  pending: { tone: "still", word: "pending", icon: "dots" },
  ready: { tone: "still", word: "ready", icon: "dots" },
  running: { tone: "running", word: "running", icon: "ring" },
  waiting: { tone: "wants", word: "waiting", icon: "hand" },
  paused: { tone: "still", word: "paused", icon: "bars" },
  completed: { tone: "done", word: "completed", icon: "tick" },
  partial: { tone: "failed", word: "partial", icon: "half" },
  failed: { tone: "failed", word: "failed", icon: "cross" },
  timed_out: { tone: "failed", word: "timed out", icon: "clock" },
  cancelled: { tone: "still", word: "cancelled", icon: "slash" },
  skipped: { tone: "still", word: "skipped", icon: "dash" },
  interrupted: { tone: "still", word: "interrupted", icon: "slash" },
  detached: { tone: "wants", word: "detached", icon: "slash" },
  merged: { tone: "done", word: "merged", icon: "tick" },
  stuck: { tone: "failed", word: "stuck", icon: "clock" },
};

const ICONS = {
  dots: () => html`<circle cx="3.2" cy="8" r="1.3" fill="currentColor" /><circle cx="8" cy="8" r="1.3" fill="currentColor" /><circle cx="12.8" cy="8" r="1.3" fill="currentColor" />`,
  ring: () => html`<g class="turning"><circle cx="8" cy="8" r="5.6" fill="none" stroke="currentColor" stroke-width="2" opacity=".28" /><path d="M8 2.4a5.6 5.6 0 0 1 5.6 5.6" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" /></g>`,
  hand: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="M6.2 6.3a1.9 1.9 0 1 1 2.6 1.8c-.6.25-.8.6-.8 1.2" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" /><circle cx="8" cy="11.5" r=".95" fill="currentColor" />`,
  bars: () => html`<path d="M5.5 3.5v9M10.5 3.5v9" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" />`,
  tick: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="m5.2 8.2 2 2 3.7-4.2" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" />`,
  cross: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="m5.8 5.8 4.4 4.4m0-4.4-4.4 4.4" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" />`,
  half: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" />`,
  clock: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="M8 4.6V8l2.3 1.6" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" />`,
  slash: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="m4 12 8-8" stroke="currentColor" stroke-width="1.6" />`,
  dash: () => html`<circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" stroke-dasharray="2.4 2" /><path d="M5.4 8h5.2" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" />`,
};

/** @param {string} status */
export const toneOf = (status) => STATUSES[status]?.tone || "still";
/** @param {string} status */
export const wordOf = (status) => STATUSES[status]?.word || String(status || "").replaceAll("_", " ");
/** @param {string} status */
export const isOver = (status) => ["completed", "partial", "failed", "cancelled", "timed_out", "skipped"].includes(status);

/**
 * How something of a run is shown: in one that is paused only a question waits for a person, anything else that was
 * running rests until the run is resumed. @template {{status: string}} T @param {string} ofRun @param {T} one @param {boolean} asks @returns {T}
 */
export const standing = (ofRun, one, asks) => (ofRun === "paused" && one.status === "waiting" && !asks ? { ...one, status: "interrupted" } : one);

/** @param {{status: string, size?: number}} props */
export function Sign({ status, size = 16 }) {
  const icon = /** @type {keyof typeof ICONS} */ (STATUSES[status]?.icon || "dots");
  return html`<svg width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true">${ICONS[icon]()}</svg>`;
}

/** @param {{status: string, pill?: boolean}} props */
export function Status({ status, pill }) {
  return html`<span class=${`status tone-${toneOf(status)} ${pill ? "pill" : ""}`}><${Sign} status=${status} />${wordOf(status)}</span>`;
}

/** How the steps of a run are distributed: worst last, so that red stands at the end. @param {{counts: Record<string, number>, resting?: boolean}} props */
export function Meter({ counts, resting }) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0) || 1;
  const order = ["completed", "running", ...(resting ? [] : ["waiting"]), "failed", "timed_out"];
  const spoken = Object.entries(counts).map(([word, n]) => `${n} ${wordOf(word)}`).join(", ");
  return html`<span class="meter" role="img" aria-label=${`Steps: ${spoken || "none yet"}`}>
    ${order.filter((word) => counts[word]).map((word) => html`<i key=${word} class=${`tone-${toneOf(word)}`} style=${{ width: `${(counts[word] / all) * 100}%` }}></i>`)}
  </span>`;
}
