/** Signs of life of what runs. They are no events: they are asked for now and then, once for the whole page. */
import { signal, useEffect } from "../vendor/preact.js";
import { get } from "./api.js";
import { onRun, tellRun } from "./stream.js";

const EVERY_MS = 5000;

/** @typedef {{run_id: string, owner: {alive: boolean} | null, heartbeat_age_ms: number | null, is_stuck: boolean}} Pulse */
/** When it was asked, and what was told by the id of each root run; null before the first answer. */
const pulses = signal(/** @type {{asked: number, told: Map<string, Pulse> | null}} */ ({ asked: 0, told: null }));
/** What goes on by a process, or will. */
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
    const before = pulses.peek().told;
    pulses.value = { asked: Date.now(), told: new Map(found.items.map((/** @type {Pulse} */ one) => [one.run_id, one])) };
    // That a process died is no event: whoever shows its run hears of it from here.
    for (const one of found.items) if (one.is_stuck && !before?.get(one.run_id)?.is_stuck) tellRun(one.run_id);
  } catch {
    // That the server is away is said at the top of the page.
  }
  busy = false;
}

function begin() {
  look();
  timer = setInterval(look, EVERY_MS);
  stop = onRun((event) => {
    const known = pulses.peek().told?.get(event.run_id);
    // One that was stuck and moves is driven again.
    if (pulses.peek().told && event.status && (Boolean(known) !== LIVE.includes(event.status) || known?.is_stuck)) look();
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
  return wanted ? pulses.value : { asked: 0, told: null };
}

/** Whether a run would go on if somebody drove it. @param {{root_run_id: string, status: string}} run */
export function useStuck(run) {
  const { told } = usePulses(LIVE.includes(run.status));
  return Boolean(told?.get(run.root_run_id)?.is_stuck);
}
