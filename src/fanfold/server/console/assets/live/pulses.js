/** Signs of life of what runs. They are no events: they are asked for now and then, once for the whole page. */
import { signal, useEffect } from "../vendor/preact.js";
import { get } from "./api.js";
import { onRun } from "./stream.js";

const EVERY_MS = 5000;

/** When it was asked, and the age of each by the id of its root run; null before the first answer. */
const pulses = signal(/** @type {{asked: number, ages: Map<string, number | null> | null}} */ ({ asked: 0, ages: null }));
let lookers = 0;
let timer = 0;
let busy = false;
let stop = () => {};

async function look() {
  if (document.hidden || busy) return;
  busy = true;
  try {
    const found = await get("/pulses");
    pulses.value = { asked: Date.now(), ages: new Map(found.items.map((/** @type {any} */ one) => [one.run_id, one.heartbeat_age_ms])) };
  } catch {
    // That the server is away is said at the top of the page.
  }
  busy = false;
}

function begin() {
  look();
  timer = setInterval(look, EVERY_MS);
  stop = onRun((event) => {
    const is = pulses.peek().ages?.has(event.run_id);
    if (is !== undefined && is !== ["running", "waiting"].includes(event.status)) look();
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
  return wanted ? pulses.value : { asked: 0, ages: null };
}
