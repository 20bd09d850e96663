/** Runs: all of them, by what the address says, and several cancelled at once. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, post, withQuery } from "../live/api.js";
import { onRun, returns } from "../live/stream.js";
import { useResource } from "../live/resource.js";
import { Confirm } from "../parts/dialog.js";
import { Empty, Loading, Trouble } from "../parts/states.js";
import { Status, isOver, wordOf } from "../parts/status.js";
import { Ago, Heartbeat, Took, endOf } from "../parts/time.js";
import { VirtualTable } from "../parts/virtual-table.js";
import { PageHead } from "../shell/frame.js";
import { go, query, setQuery } from "../shell/route.js";
import { notify, notifyError } from "../shell/notices.js";
import { Cost } from "../parts/cost.js";

const STATUSES = ["running", "waiting", "paused", "completed", "partial", "failed", "timed_out", "cancelled"];
const PIECE = 100;
const COLUMNS = [
  { name: "Pick", kind: "pick", head: () => html`<span class="unseen">Pick</span>` }, { name: "Recipe", kind: "of-run" }, { name: "Status" }, { name: "Inputs", kind: "text brief", narrow: true }, { name: "Error", kind: "text", narrow: true },
  { name: "Started", narrow: true }, { name: "Time", number: true, narrow: true }, { name: "Cost", number: true, narrow: true, medium: true }, { name: "Run", narrow: true, medium: true },
];
const TIMES = [["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["30d", "Last 30 days"]];

export function Runs() {
  const status = query.value.get("status") || "";
  const recipe = query.value.get("recipe") || "";
  const since = query.value.get("since") || "";
  const words = query.value.get("q") || "";
  const list = useRuns({ status, recipe, since, q: words });
  const shelf = useResource("/recipes");
  const [picked, setPicked] = useState(/** @type {Set<string>} */ (new Set()));
  const [asking, setAsking] = useState(false);
  const names = (shelf.data?.items || []).map((/** @type {any} */ row) => row.name);
  const open = list.rows.filter((row) => picked.has(row.run_id) && !isOver(row.status));
  const pick = (/** @type {string} */ id) => setPicked((before) => {
    const next = new Set(before);
    if (!next.delete(id)) next.add(id);
    return next;
  });
  const cancel = async () => {
    const results = await Promise.allSettled(open.map((row) => post(`/runs/${row.run_id}/cancel`)));
    const bad = results.find((one) => one.status === "rejected");
    if (bad) notifyError(/** @type {PromiseRejectedResult} */ (bad).reason);
    const done = results.filter((one) => one.status === "fulfilled").length;
    if (done) notify(`${done} of ${results.length} cancelled.`);
    setPicked(new Set());
    list.reload();
  };
  const chosen = [...picked];
  return html`<div class="page wide">
    <${PageHead} title="Runs" actions=${html`
      ${picked.size === 2 && html`<button class="button" onClick=${() => go(`/compare/${chosen[0]}/${chosen[1]}`)}>Compare</button>`}
      ${open.length > 0 && html`<button class="button danger" onClick=${() => setAsking(true)}>Cancel ${open.length}</button>`}
      <${Import} />
      <a class="button" href="/compare">Models compared</a>
      <a class="button primary" href="/recipes">Run a recipe</a>`} />
    <form class="filters" role="search" aria-label="Filter runs" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <input type="search" aria-label="Words in inputs, errors, recipe or id" placeholder="Inputs, errors, recipe or id" value=${words} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value })} />
      <select aria-label="Status" value=${status} onChange=${(/** @type {any} */ event) => setQuery({ status: event.target.value })}>
        <option value="">Any status</option>${STATUSES.map((one) => html`<option key=${one} value=${one}>${wordOf(one)}</option>`)}
      </select>
      <select aria-label="Recipe" value=${recipe} onChange=${(/** @type {any} */ event) => setQuery({ recipe: event.target.value })}>
        <option value="">Any recipe</option>${[...new Set([...names, ...(recipe ? [recipe] : [])])].map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
      </select>
      <select aria-label="Time" value=${since} onChange=${(/** @type {any} */ event) => setQuery({ since: event.target.value })}>
        <option value="">Any time</option>${TIMES.map(([one, name]) => html`<option key=${one} value=${one}>${name}</option>`)}${since && !TIMES.some(([one]) => one === since) && html`<option value=${since}>Since ${since}</option>`}
      </select>
    </form>
    <${Trouble} error=${list.error} />
    ${list.loading && !list.rows.length ? html`<${Loading} />` : !list.rows.length && list.error ? null : !list.rows.length ? html`<${None} filtered=${status || recipe || since || words} />` : html`<${VirtualTable}
      label="Runs" rows=${list.rows} keyOf=${(/** @type {any} */ row) => row.run_id} onEnd=${list.more} columns=${COLUMNS}
      render=${(/** @type {any} */ row) => [
        html`<input type="checkbox" aria-label=${`Pick ${row.recipe} ${row.run_id}`} checked=${picked.has(row.run_id)} onChange=${() => pick(row.run_id)} />`,
        html`<span class="of-run"><a class="row-link" href=${`/runs/${row.run_id}`} title=${row.recipe}>${row.recipe}</a>${row.forked_from && html`<span class="chip">fork</span>`}${row.scripted && html`<span class="chip" title="The agents of this run are scripted">scripted</span>`}</span>`,
        html`<span class="stacked"><${Status} status=${row.status} />${row.status === "running" && html`<${Heartbeat} root=${row.root_run_id} status=${row.status} />`}<span class="quiet only-narrow"><${Ago} at=${row.created_at} /></span></span>`,
        html`<span class="quiet" title=${row.inputs}>${row.inputs}</span>`, html`<span title=${row.error?.message || ""}>${row.error ? causeOf(row.error) : ""}</span>`,
        html`<${Ago} at=${row.created_at} />`,
        html`<${Took} from=${row.started_at} to=${endOf(row)} />`, html`<${Cost} usage=${row.usage} />`,
        html`<span class="mono small quiet">${row.run_id}</span>`,
      ]} />`}
    ${asking && html`<${Confirm} title=${`Cancel ${open.length} ${open.length === 1 ? "run" : "runs"}?`} verb=${`Cancel ${open.length}`} onYes=${cancel} onClose=${() => setAsking(false)}
      text="Their processes are stopped. Everything that was recorded stays, and each run can be forked." />`}
  </div>`;
}

/** An error with its step, which its message may begin with already. @param {any} error */
const causeOf = (error) => (error.step && !error.message.startsWith(`${error.step}:`) ? `${error.step}: ` : "") + error.message;

/** Imports a run from the file of an export. */
function Import() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [busy, setBusy] = useState(false);
  const take = async (/** @type {any} */ event) => {
    const file = event.target.files[0];
    if (!file) return;
    setBusy(true);
    try {
      const taken = await post("/import", { page: await file.text() });
      notify(`Imported ${taken.recipe} ${taken.run_id}. Nothing of it runs; a fork asks first.`);
      go(`/runs/${taken.run_id}`);
    } catch (error) {
      notifyError(error);
    }
    setBusy(false);
    if (field.current) field.current.value = ""; // the same file may be chosen again
  };
  return html`<input ref=${field} type="file" accept=".html,text/html" hidden aria-label="File of an exported run" onChange=${take} />
    <button class="button" disabled=${busy} onClick=${() => field.current?.click()}>${busy ? "…" : "Import …"}</button>`;
}

/** @param {{filtered: string}} props */
const None = ({ filtered }) => filtered
  ? html`<${Empty} title="No run matches"><p>Remove a filter, or search for other words.</p><button class="button" onClick=${() => setQuery({ status: null, recipe: null, since: null, q: null })}>Show all runs</button></${Empty}>`
  : html`<${Empty} title="There are no runs yet"><p>A run is one execution of a recipe. <a href="/">Home</a> has three recipes that run without a key.</p></${Empty}>`;

/** All pages that were requested so far; the first one is updated. @param {Record<string, string>} filters */
function useRuns(filters) {
  const [state, setState] = useState({ rows: /** @type {any[]} */ ([]), next: /** @type {string | null} */ (null), error: /** @type {any} */ (null), loading: true });
  const [turn, setTurn] = useState(0);
  const asked = useRef("");
  const wanted = (asked.current = JSON.stringify(filters));
  useEffect(() => {
    let over = false;
    let timer = 0;
    const path = withQuery("/runs", { ...filters, limit: PIECE });
    const load = async () => {
      try {
        const page = await get(path);
        if (!over) setState((before) => joined(before, page));
      } catch (error) {
        if (!over) setState((before) => ({ ...before, error, loading: false }));
      }
    };
    setState((before) => ({ ...before, rows: [], next: null, loading: true }));
    load();
    const soon = () => {
      if (!timer) timer = setTimeout(() => { timer = 0; if (!document.hidden) load(); }, 600);
    };
    const stop = onRun(soon);
    const stopReturns = returns.subscribe(soon);
    return () => {
      over = true;
      clearTimeout(timer);
      stop();
      stopReturns();
    };
  }, [wanted, turn]);
  const more = async () => {
    const cursor = state.next;
    if (!cursor) return;
    const mine = asked.current;
    const isMine = () => mine === asked.current; // else it belongs to a list that is not shown any more
    setState((before) => ({ ...before, next: null }));
    try {
      const page = await get(withQuery("/runs", { ...filters, limit: PIECE, cursor }));
      if (isMine()) setState((before) => ({ ...before, rows: withMore(before.rows, page.items), next: page.next }));
    } catch (error) {
      if (isMine()) setState((before) => ({ ...before, error, next: cursor }));
    }
  };
  return { ...state, more, reload: () => setTurn((n) => n + 1) };
}

/** @param {any[]} rows @param {any[]} more */
function withMore(rows, more) {
  const known = new Set(rows.map((row) => row.run_id));
  return [...rows, ...more.filter((row) => !known.has(row.run_id))];
}

/** A fresh first piece, and what of the further ones still lies behind it. @param {any} before @param {any} page */
function joined(before, page) {
  const fresh = new Set(page.items.map((/** @type {any} */ row) => row.run_id));
  const at = before.rows.findIndex((/** @type {any} */ row) => row.run_id === page.items.at(-1)?.run_id);
  const rest = page.next && at >= 0 ? before.rows.slice(at + 1).filter((/** @type {any} */ row) => !fresh.has(row.run_id)) : [];
  return { rows: [...page.items, ...rest], next: rest.length ? before.next : page.next, error: null, loading: false };
}
