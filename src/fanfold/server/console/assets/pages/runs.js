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
import { say, sayError } from "../shell/said.js";
import { amount, cost } from "../text/format.js";

const STATUSES = ["running", "waiting", "paused", "completed", "partial", "failed", "timed_out", "cancelled"];
const PIECE = 100;
const COLUMNS = [
  { name: "Pick", kind: "pick", head: () => html`<span class="unseen">Pick</span>` }, { name: "Recipe", kind: "named" }, { name: "Status" }, { name: "Started", narrow: true }, { name: "Time", number: true },
  { name: "Agents", number: true, narrow: true }, { name: "Tokens", number: true, narrow: true }, { name: "Cost", number: true, narrow: true }, { name: "Run", narrow: true },
];

export function Runs() {
  const status = query.value.get("status") || "";
  const recipe = query.value.get("recipe") || "";
  const words = query.value.get("q") || "";
  const list = useRuns(status, recipe, words);
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
    if (bad) sayError(/** @type {PromiseRejectedResult} */ (bad).reason);
    const done = results.filter((one) => one.status === "fulfilled").length;
    if (done) say(`${done} of ${results.length} cancelled.`);
    setPicked(new Set());
    list.reload();
  };
  const chosen = [...picked];
  return html`<div class="page wide">
    <${PageHead} title="Runs" actions=${html`
      ${picked.size === 2 && html`<button class="button" onClick=${() => go(`/compare/${chosen[0]}/${chosen[1]}`)}>Compare the two</button>`}
      ${open.length > 0 && html`<button class="button danger" onClick=${() => setAsking(true)}>Cancel ${open.length}</button>`}
      <${Import} />
      <a class="button primary" href="/recipes">Run a recipe</a>`} />
    <form class="filters" role="search" aria-label="Filter runs" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <input type="search" aria-label="Words in id, recipe or error" placeholder="Id, recipe or error" value=${words} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value })} />
      <select aria-label="Status" value=${status} onChange=${(/** @type {any} */ event) => setQuery({ status: event.target.value })}>
        <option value="">Any status</option>${STATUSES.map((one) => html`<option key=${one} value=${one}>${wordOf(one)}</option>`)}
      </select>
      <select aria-label="Recipe" value=${recipe} onChange=${(/** @type {any} */ event) => setQuery({ recipe: event.target.value })}>
        <option value="">Any recipe</option>${[...new Set([...names, ...(recipe ? [recipe] : [])])].map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
      </select>
    </form>
    <${Trouble} error=${list.error} />
    ${list.loading && !list.rows.length ? html`<${Loading} />` : !list.rows.length && list.error ? null : !list.rows.length ? html`<${None} filtered=${status || recipe || words} />` : html`<${VirtualTable}
      label="Runs" rows=${list.rows} keyOf=${(/** @type {any} */ row) => row.run_id} onEnd=${list.more} columns=${COLUMNS}
      render=${(/** @type {any} */ row) => [
        html`<input type="checkbox" aria-label=${`Pick ${row.recipe} ${row.run_id}`} checked=${picked.has(row.run_id)} onChange=${() => pick(row.run_id)} />`,
        html`<a class="row-link" href=${`/runs/${row.run_id}`} title=${row.recipe}>${row.recipe}</a>${row.forked_from ? html` <span class="chip">fork</span>` : ""}`,
        html`<${Status} status=${row.status} /> <${Heartbeat} root=${row.root_run_id} status=${row.status} />`,
        html`<${Ago} at=${row.created_at} />`,
        html`<${Took} from=${row.started_at} to=${endOf(row)} />`,
        amount(row.usage.agents), amount(row.usage.input_tokens + row.usage.output_tokens), cost(row.usage),
        html`<span class="mono small quiet">${row.run_id}</span>`,
      ]} />`}
    ${asking && html`<${Confirm} title=${`Cancel ${open.length} ${open.length === 1 ? "run" : "runs"}?`} verb=${`Cancel ${open.length}`} onYes=${cancel} onClose=${() => setAsking(false)}
      text="Every process of theirs is ended. What they recorded stays, and each can be forked." />`}
  </div>`;
}

/** A run that somebody exported, taken in from its file. */
function Import() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [busy, setBusy] = useState(false);
  const take = async (/** @type {any} */ event) => {
    const file = event.target.files[0];
    if (!file) return;
    setBusy(true);
    try {
      const taken = await post("/import", { page: await file.text() });
      say(`${taken.recipe} ${taken.run_id} is here now. Nothing of it runs; a fork asks first.`);
      go(`/runs/${taken.run_id}`);
    } catch (error) {
      sayError(error);
    }
    setBusy(false);
    if (field.current) field.current.value = ""; // the same file may be chosen again
  };
  return html`<input ref=${field} type="file" accept=".html,text/html" hidden aria-label="A file that holds a run" onChange=${take} />
    <button class="button" disabled=${busy} onClick=${() => field.current?.click()}>${busy ? "…" : "Import …"}</button>`;
}

/** @param {{filtered: string}} props */
const None = ({ filtered }) => filtered
  ? html`<${Empty} title="No run is like that"><p>Take a filter away, or look for other words.</p><button class="button" onClick=${() => setQuery({ status: null, recipe: null, q: null })}>Show all runs</button></${Empty}>`
  : html`<${Empty} title="There are no runs yet"><p>A run is one execution of a recipe. <a href="/">Home</a> has three to begin with that need no key.</p></${Empty}>`;

/** All pieces that were asked for so far, the first of them kept fresh. @param {string} status @param {string} recipe @param {string} words */
function useRuns(status, recipe, words) {
  const [state, setState] = useState({ rows: /** @type {any[]} */ ([]), next: /** @type {string | null} */ (null), error: /** @type {any} */ (null), loading: true });
  const [turn, setTurn] = useState(0);
  const asked = useRef("");
  asked.current = JSON.stringify([status, recipe, words]);
  useEffect(() => {
    let over = false;
    let timer = 0;
    const path = withQuery("/runs", { status, recipe, q: words, limit: PIECE });
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
  }, [status, recipe, words, turn]);
  const more = async () => {
    const cursor = state.next;
    if (!cursor) return;
    const mine = asked.current;
    const isMine = () => mine === asked.current; // else it belongs to a list that is not shown any more
    setState((before) => ({ ...before, next: null }));
    try {
      const page = await get(withQuery("/runs", { status, recipe, q: words, limit: PIECE, cursor }));
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
