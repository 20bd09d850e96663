/* One stream for all tabs: a browser allows six connections to one server, and each tab needs some for itself.
   The worker holds the stream, remembers where it was, and passes every event on to every tab that listens. */

/** @type {Set<MessagePort>} */
const tabs = new Set();
let state = "opening";
let since = Date.now();
/** @type {EventSource | null} */
let source = null;
let last = "";
/** What agents do, for a tab that comes later. @type {Map<string, unknown>} */
const doing = new Map();

/** @param {unknown} message */
function broadcast(message) {
  for (const tab of tabs) tab.postMessage(message);
}

/** @param {string} next */
function become(next) {
  if (state === next && next !== "refused") return; // why it is may have changed
  if (state === "opening" || state === "live" || next === "live") since = Date.now();
  state = next;
  broadcast({ type: "state", state, since });
}

function openStream() {
  source = new EventSource(last ? `/api/stream?after=${encodeURIComponent(last)}` : "/api/stream");
  source.onopen = () => become("live");
  source.onerror = () => {
    // A stream that was refused stays closed; one that broke off is taken up again by the browser.
    become(source?.readyState === 2 ? "refused" : "lost");
    if (source && source.readyState === 2) {
      source.close();
      source = null;
      setTimeout(() => tabs.size && !source && openStream(), 1500);
    }
  };
  for (const type of ["hello", "run", "activity"])
    source.addEventListener(type, (event) => {
      if (event.lastEventId) last = event.lastEventId;
      const message = { type, data: JSON.parse(event.data) };
      remember(message);
      broadcast(message);
    });
}

/** @param {{type: string, data: any}} message */
function remember(message) {
  if (message.type === "hello") doing.clear();
  if (message.type !== "activity") return;
  const key = `${message.data.run_id}:${message.data.path}`;
  if (message.data.words) doing.set(key, message);
  else doing.delete(key);
}

/** @param {MessageEvent} event */
// @ts-ignore: the scope of a shared worker is not in the library of pages
self.onconnect = (event) => {
  const port = event.ports[0];
  tabs.add(port);
  port.onmessage = (message) => {
    if (message.data === "bye") tabs.delete(port);
    if (message.data === "back") tabs.add(port);
    if (message.data === "how") port.postMessage({ type: "count", tabs: tabs.size });
    if (!tabs.size && source) {
      source.close();
      source = null;
    } else if (tabs.size && !source) openStream();
  };
  port.postMessage({ type: "state", state, since });
  for (const message of doing.values()) port.postMessage(message);
  if (!source) openStream();
};
