/** Times: relative, with the exact one for who points at it. */
import { html } from "../vendor/preact.js";
import { LIVE, usePulses } from "../live/pulses.js";
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

const STALE_MS = 45000;

/**
 * The age of the last sign of life of whoever drives a run; nothing for one that does not run. `root` is the run whose process it is.
 * @param {{root: string, status: string}} props
 */
export function Heartbeat({ root, status }) {
  const runs = LIVE.includes(status);
  const { asked, told } = usePulses(runs);
  const pulse = told?.get(root);
  if (!runs || !pulse) return null;
  if (pulse.is_stuck) return html`<span class="heartbeat stale" title="No process drives this run. Resume it to go on.">nobody drives it</span>`;
  if (pulse.heartbeat_age_ms === null || !pulse.owner?.alive) {
    if (status === "waiting") return html`<span class="heartbeat" title="No process is needed until somebody answers it, or gives it more to do.">rests until somebody acts</span>`;
    return html`<span class="heartbeat">starting</span>`;
  }
  const age = pulse.heartbeat_age_ms + Math.max(0, now.value - asked);
  return html`<span class=${`heartbeat number ${age > STALE_MS ? "stale" : ""}`} title="How long ago the process that drives this run gave a sign of life">heartbeat ${age < 1500 ? "now" : age < 60000 ? `${Math.floor(age / 1000)} s ago` : `${duration(age)} ago`}</span>`;
}
