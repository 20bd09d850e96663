/** Heartbeats of active runs. They are no events: the page requests them together, every few seconds. */
import { signal, useEffect } from "../vendor/preact.js";
import { get } from "./api.js";
import { onRun, notifyRun } from "./stream.js";

const EVERY_MS = 5000;

/** @typedef {{run_id: string, owner: {alive: boolean} | null, heartbeat_age_ms: number | null, is_stuck: boolean, state: string, hint: string, steps: {path: string, worker: string, machine: string, heartbeat_age_ms: number}[]}} Pulse */
/** When they were requested, and the pulse of each root run; null before the first response. */
const pulses = signal(/** @type {{asked: number, found: Map<string, Pulse> | null}} */ ({ asked: 0, found: null }));
/** Statuses of runs that a process runs, or will run. */
export const LIVE = ["pending", "running", "waiting"];
let lookers = 0;
let timer = 0;
let busy = false;
let stop = () => {};

async function look() {
  if (document.hidden || busy) return;
  busy = true;
  try {
    const found = await get("/pulses");
    const before = pulses.peek().found;
    pulses.value = { asked: Date.now(), found: new Map(found.items.map((/** @type {Pulse} */ one) => [one.run_id, one])) };
    // The death of a process is no event: pages that show its run are notified from here.
    for (const one of found.items) if (one.is_stuck && !before?.get(one.run_id)?.is_stuck) notifyRun(one.run_id);
  } catch {
    // The frame shows that the server cannot be reached.
  }
  busy = false;
}

function begin() {
  look();
  timer = setInterval(look, EVERY_MS);
  stop = onRun((event) => {
    const known = pulses.peek().found?.get(event.run_id);
    // One that was stuck and moves is driven again.
    if (pulses.peek().found && event.status && (Boolean(known) !== LIVE.includes(event.status) || known?.is_stuck)) look();
  });
}

/** For as long as something is shown that runs. @param {boolean} wanted */
export function usePulses(wanted) {
  useEffect(() => {
    if (!wanted) return;
    if ((lookers += 1) === 1) begin();
    return () => {
      if ((lookers -= 1) > 0) return;
      clearInterval(timer);
      stop();
    };
  }, [wanted]);
  return wanted ? pulses.value : { asked: 0, found: null };
}

/** Whether a run has no process and needs one. @param {{root_run_id: string, status: string}} run */
export function useStuck(run) {
  const { found } = usePulses(LIVE.includes(run.status));
  return Boolean(found?.get(run.root_run_id)?.is_stuck);
}
