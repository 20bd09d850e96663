/** Times: relative, with the exact one on hover. */
import { html } from "../vendor/preact.js";
import { LIVE, usePulses } from "../live/pulses.js";
import { ago, duration, exact, msOf, now } from "../text/format.js";

/** @param {{at: string | number | null | undefined}} props */
export function Ago({ at }) {
  const then = msOf(at);
  if (then === null) return null;
  return html`<time datetime=${new Date(then).toISOString()} title=${exact(then)}>${ago(then, now.value)}</time>`;
}

/** When the clock of a run stopped; null while it runs. @param {any} run */
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
 * The age of the last heartbeat of the process that owns a run; nothing for a run that is not active. `root` is the root of its tree.
 * @param {{root: string, status: string}} props
 */
export function Heartbeat({ root, status }) {
  const runs = LIVE.includes(status);
  const { asked, found } = usePulses(runs);
  const pulse = found?.get(root);
  if (!runs || !pulse) return null;
  if (pulse.state) return html`<span class=${`heartbeat ${pulse.is_stuck ? "stale" : ""}`} title=${pulse.hint}>${pulse.state}</span>`;
  return html`<${Beat} age=${(pulse.heartbeat_age_ms ?? 0) + Math.max(0, now.value - asked)} hint=${pulse.hint} />`;
}

/** @param {{age: number, hint?: string}} props */
export const Beat = ({ age, hint }) => html`<span class=${`heartbeat number ${age > STALE_MS ? "stale" : ""}`} title=${hint}>heartbeat ${age < 1500 ? "now" : age < 60000 ? `${Math.floor(age / 1000)} s ago` : `${duration(age)} ago`}</span>`;

/**
 * The worker, the machine and the heartbeat of a running step; of its run, if no worker of a cluster executes it.
 * @param {{root: string, path: string}} props
 */
export function StepHeartbeat({ root, path }) {
  const { asked, found } = usePulses(true);
  const step = found?.get(root)?.steps.find((one) => one.path === path);
  if (!step) return html`<${Heartbeat} root=${root} status="running" />`;
  return html`<a href="/workers">${step.worker}</a><span>${step.machine}</span><${Beat} age=${step.heartbeat_age_ms + Math.max(0, now.value - asked)} hint="Time since the last heartbeat of the worker that executes this step." />`;
}
