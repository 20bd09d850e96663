/** The live stream of all runs. Pages are notified that a run changed, and request what they show. */
import { signal } from "../vendor/preact.js";
import { get } from "./api.js";

/**
 * `opening`, `live`, or not live since a time: `lost` when the server is away, `shut` when it does not let this browser in any
 * more, `full` when it accepts no more followers.
 */
export const connection = signal({ state: "opening", since: Date.now() });
/** How often the stream was reconnected: every page then requests its data again. */
export const returns = signal(0);
/** What agents do at this moment, by run and step. */
export const activity = signal(/** @type {Record<string, any>} */ ({}));

/** @type {Set<(event: {run_id: string, seq: number, status: string}) => void>} */
const listeners = new Set();

/** @param {(event: {run_id: string, seq: number, status: string}) => void} fn @returns {() => void} */
export function onRun(fn) {
  listeners.add(fn);
  return () => listeners.delete(fn);
}

/** A run is not as it was, though nothing was recorded: it has no status here. @param {string} run_id */
export function notifyRun(run_id) {
  for (const fn of listeners) fn({ run_id, seq: 0, status: "" });
}

/** @param {any} message */
function receive(message) {
  if (message.type === "state") {
    if (message.state === "refused") return void learnWhy(message.since);
    const before = connection.peek().state;
    connection.value = { state: message.state, since: message.since };
    if (message.state === "live" && !["opening", "live"].includes(before)) returns.value += 1;
  } else if (message.type === "run") {
    for (const fn of listeners) fn(message.data);
  } else if (message.type === "activity") {
    const { run_id, path, words } = message.data;
    const { [`${run_id}:${path}`]: _before, ...others } = activity.peek();
    activity.value = words ? { ...others, [`${run_id}:${path}`]: message.data } : others;
  } else if (message.type === "hello") {
    activity.value = {}; // a new stream sends the activity of every running session
  }
}

/** A browser does not say why a stream was refused; the answer to any other question does. @param {number} since */
async function learnWhy(since) {
  let state = "full";
  try {
    await get("/pulses");
  } catch (error) {
    state = /** @type {any} */ (error).status === 401 ? "shut" : "lost";
  }
  if (connection.peek().state !== "live" || connection.peek().since < since) connection.value = { state, since };
}

export function startStream() {
  if ("SharedWorker" in window) {
    const worker = new SharedWorker(new URL("./stream-worker.js", import.meta.url), { name: "fanfold" });
    worker.port.onmessage = (event) => receive(event.data);
    worker.port.start();
    addEventListener("pagehide", () => worker.port.postMessage("bye"));
    addEventListener("pageshow", (event) => event.persisted && worker.port.postMessage("back"));
    return;
  }
  openHere();
}

/** Without shared workers each tab has a stream of its own, and a hidden one none. */
function openHere() {
  /** @type {EventSource | null} */
  let source = null;
  const look = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      source = new EventSource("/api/stream");
      source.onopen = () => receive({ type: "state", state: "live", since: Date.now() });
      source.onerror = () => {
        // One that was refused stays closed; one that broke off is taken up again by the browser.
        const refused = source?.readyState === 2;
        const { state, since } = connection.peek();
        receive({ type: "state", state: refused ? "refused" : "lost", since: ["opening", "live"].includes(state) ? Date.now() : since });
        if (!refused) return;
        source = null;
        setTimeout(look, 1500);
      };
      for (const type of ["hello", "run", "activity"])
        source.addEventListener(type, (event) => receive({ type, data: JSON.parse(event.data) }));
    }
  };
  document.addEventListener("visibilitychange", () => {
    look();
    if (!document.hidden) returns.value += 1;
  });
  look();
}
