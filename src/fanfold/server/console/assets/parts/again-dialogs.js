/** Again: what is kept, what runs again and what that may cost, before a fork or a retry begins. */
import { html, useEffect, useState } from "../vendor/preact.js";
import { post } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { go } from "../shell/route.js";
import { cost, counted } from "../text/format.js";
import { writeJson } from "../text/json.js";
import { CopyAs } from "./copy-as.js";
import { Dialog } from "./dialog.js";
import { Effects } from "./effects.js";
import { Loading, Trouble } from "./states.js";

/** From a step on. @param {{run: any, step: string | null, onClose: () => void}} props */
export function ForkDialog({ run, step, onClose }) {
  const table = useResource(`/runs/${run.run_id}/table`);
  const names = (table.data?.rows || []).filter((/** @type {any} */ row) => row.depth === 0).map((/** @type {any} */ row) => row.path);
  const [from, setFrom] = useState(step ? topOf(step, run.execution_path) : "");
  const start = from || names[0] || "";
  return html`<${Again} title="Fork from a step" verb="Fork" run=${run} action="fork" asked=${start ? { from: start } : null} copied=${{ run: run.run_id, step: start, yes: true }} onClose=${onClose}>
    <div class="field"><label for="fork-from">Run again from</label>
      <select id="fork-from" value=${start} onChange=${(/** @type {any} */ event) => setFrom(event.target.value)}>${names.map((/** @type {string} */ name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>
      <span class="hint">Earlier steps are reused; no model is called for them again.</span></div>
  </${Again}>`;
}

/** What did not succeed. @param {{run: any, onClose: () => void}} props */
export function RetryDialog({ run, onClose }) {
  return html`<${Again} title="Retry what failed" verb="Retry" run=${run} action="retry" asked=${NOTHING} copied=${{ run: run.run_id, yes: true }} onClose=${onClose}>
    <p>A new run retries the steps that did not succeed and the steps that depend on them. All other results are reused without a model call.</p>
  </${Again}>`;
}
const NOTHING = {};

/** @param {{title: string, verb: string, run: any, action: string, asked: any, copied: any, onClose: () => void, children?: any}} props `asked` is null as long as it is not known */
function Again({ title, verb, run, action, asked, copied, onClose, children }) {
  const [foreseen, setForeseen] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const path = `/runs/${run.run_id}/${action}`;
  const words = writeJson(asked);
  useEffect(() => {
    if (asked === null) return;
    let over = false;
    setForeseen(null);
    setError(null);
    post(path, { ...asked, dry_run: true }).then(
      (found) => !over && setForeseen(found.forecast),
      (failure) => !over && setError(failure),
    );
    return () => {
      over = true;
    };
  }, [words]);
  const begin = async () => {
    setBusy(true);
    try {
      const made = await post(path, { ...asked, dry_run: false, yes: true, seen: foreseen.seen });
      onClose();
      go(`/runs/${made.run_id}`);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} foot=${html`
      <${CopyAs} action=${action} words=${copied} />
      <button class="button" onClick=${onClose}>Not now</button>
      <button class="button primary" disabled=${!foreseen || busy} onClick=${begin}>${busy ? "Starting …" : verb}</button>`}>
    ${children}
    <${Trouble} error=${error} />
    ${!error && !foreseen && html`<${Loading} label="Computing what is reused" />`}
    ${foreseen && html`<${Foreseen} data=${foreseen} />`}
  </${Dialog}>`;
}

/** @param {{data: any}} props */
function Foreseen({ data }) {
  const changed = ["added", "removed", "changed"].flatMap((word) => (data.recipe?.[word] || []).map((/** @type {string} */ step) => `${step} (${word})`));
  return html`<dl class="figures">
      <div><dt>Reused</dt><dd>${data.reuses.length}</dd></div><div><dt>Run again</dt><dd>${data.runs_again.length}</dd></div>
      <div><dt>Cost last time</dt><dd>${cost(data.last_time)} <small>${counted(data.agents, "agent")}</small></dd></div></dl>
    ${data.asks.length > 0 && html`<div class="notice tone-wants"><strong>It needs your permission:</strong> <${Effects} totals=${data.totals} needs=${data.asks} /></div>`}
    ${changed.length > 0 && html`<p class="quiet small">The recipe has changed since: ${changed.join(", ")}.</p>`}
    ${Object.keys(data.merged).length > 0 && html`<p class="quiet small">Files that these steps merged before stay in the project: ${Object.entries(data.merged).map(([path, n]) => `${path} (${n})`).join(", ")}.</p>`}
    <div class="two-lists"><${Names} title="Reused" names=${data.reuses} /><${Names} title="Run again" names=${data.runs_again} /></div>`;
}

/** The step of a run that holds another, both by their paths in the tree. @param {string} path @param {string} above */
function topOf(path, above) {
  const before = above && path.startsWith(`${above}/`) ? `${above}/` : "";
  return before + path.slice(before.length).replace(/[[#/].*$/, "");
}

/** @param {{title: string, names: any[]}} props */
function Names({ title, names }) {
  /** Items of one fan-out stand together. @type {Map<string, string[]>} */
  const groups = new Map();
  for (const one of names) {
    const path = one.path || one;
    const name = path.replace(/\[\d+\]/g, "[…]");
    groups.set(name, [...(groups.get(name) || []), path]);
  }
  const shown = [...groups].slice(0, 30);
  return html`<div><h3>${title}</h3><p class="chips">${shown.map(([name, paths]) => html`<span class="chip" key=${name}>${paths.length > 1 ? html`${name} <b>× ${paths.length}</b>` : paths[0]}</span>`)}${groups.size > 30 ? ` and ${groups.size - 30} more` : ""}${names.length ? "" : html`<span class="quiet">nothing</span>`}</p></div>`;
}
