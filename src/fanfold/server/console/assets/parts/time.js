/** Times: relative, with the exact one for who points at it. */
import { html } from "../vendor/preact.js";
import { ago, duration, exact, msOf, now } from "../text/format.js";

/** @param {{at: string | number | null | undefined}} props */
export function Ago({ at }) {
  const then = msOf(at);
  if (then === null) return null;
  return html`<time datetime=${new Date(then).toISOString()} title=${exact(then)}>${ago(then, now.value)}</time>`;
}

/** How long something took, or has taken so far. @param {{from: string | number | null | undefined, to?: string | number | null}} props */
export function Took({ from, to }) {
  const start = msOf(from);
  if (start === null) return null;
  const end = msOf(to ?? null);
  return html`<span class="number" title=${exact(start)}>${duration((end ?? now.value) - start)}</span>`;
}

/** The age of the last sign of life of whoever drives a run. @param {{ageMs: number | null | undefined, asked: number, waiting?: boolean}} props */
export function Heartbeat({ ageMs, asked, waiting }) {
  if (waiting && (ageMs === null || ageMs === undefined)) return html`<span title="No process is needed until somebody answers.">goes on when answered</span>`;
  if (ageMs === null || ageMs === undefined)
    return html`<span class="stale" title="No process drives this run. Resume it to go on.">nobody drives it</span>`;
  const age = ageMs + Math.max(0, now.value - asked);
  return html`<span class=${age > 45000 ? "stale" : ""} title="How long ago the process that drives this run gave a sign of life">
    heartbeat ${age < 1500 ? "now" : `${duration(age)} ago`}
  </span>`;
}
