/** Times: relative, with the exact one for who points at it. */
import { html } from "../vendor/preact.js";
import { usePulses } from "../live/pulses.js";
import { ago, duration, exact, msOf, now } from "../text/format.js";

/** @param {{at: string | number | null | undefined}} props */
export function Ago({ at }) {
  const then = msOf(at);
  if (then === null) return null;
  return html`<time datetime=${new Date(then).toISOString()} title=${exact(then)}>${ago(then, now.value)}</time>`;
}

/** When the time of a run ended or stopped; null while it goes on. @param {any} run */
export const endOf = (run) => run.ended_at ?? run.stopped_at ?? null;

/** How long something took, or has taken so far. @param {{from: string | number | null | undefined, to?: string | number | null}} props */
export function Took({ from, to }) {
  const start = msOf(from);
  if (start === null) return null;
  const end = msOf(to ?? null);
  return html`<span class="number" title=${exact(start)}>${duration((end ?? now.value) - start)}</span>`;
}

const STARTING_MS = 15000;
const STALE_MS = 45000;

/**
 * The age of the last sign of life of whoever drives a run; nothing for one that does not run. `root` is the run whose process it is.
 * @param {{root: string, status: string, since?: string | null}} props
 */
export function Heartbeat({ root, status, since }) {
  const runs = status === "running" || status === "waiting";
  const { asked, ages } = usePulses(runs);
  if (!runs || !ages?.has(root)) return null;
  const told = ages.get(root) ?? null;
  if (told === null) {
    if (status === "waiting") return html`<span class="heartbeat" title="No process is needed until somebody answers.">goes on when answered</span>`;
    if (now.value - (msOf(since) ?? 0) < STARTING_MS) return html`<span class="heartbeat">starting</span>`;
    return html`<span class="heartbeat stale" title="No process drives this run. Resume it to go on.">nobody drives it</span>`;
  }
  const age = told + Math.max(0, now.value - asked);
  return html`<span class=${`heartbeat number ${age > STALE_MS ? "stale" : ""}`} title="How long ago the process that drives this run gave a sign of life">heartbeat ${age < 1500 ? "now" : age < 60000 ? `${Math.floor(age / 1000)} s ago` : `${duration(age)} ago`}</span>`;
}
