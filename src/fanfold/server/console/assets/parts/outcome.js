/** What a reader of a run wants first: the open question, the failure with its cause, the answer, or what agents do now. */
import { html, useState } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { activity } from "../live/stream.js";
import { query, setQuery } from "../shell/route.js";
import { amount, asText, counted } from "../text/format.js";
import { plain } from "../text/markdown.js";
import { AnswerHere } from "./answer-form.js";
import { Output } from "./output.js";
import { Status, isOver } from "./status.js";

const LONG_CHARS = 900;
const LONG_LINES = 18;
/** No more than this is drawn of an answer that is cut. */
const CUT_CHARS = 3000;
const MOST_AGENTS = 6;

/** @param {{run: any, id: string, at: string | null, rows: any[], view: string, step: string | null, choose: (path: string) => void, concerns: any, reload: () => void}} props */
export function Outcome({ run, id, at, rows, view, step, choose, concerns, reload }) {
  const asking = at || isOver(run.status) ? [] : rows.filter((row) => row.asks && row.path !== step); // the panel of the selected step asks itself
  return html`<div class="outcome">
    ${query.value.get("intro") && html`<${Intro} run=${run} />`}
    ${run.error ? html`<${Failure} run=${run} rows=${rows} step=${step} choose=${choose} />` : !at && (run.waits || []).map((/** @type {any} */ wait) => html`<section class="notice tone-wants" key=${wait.subject} aria-label="Why it waits" title=${wait.message}>${wait.text}</section>`)}
    ${asking.length > 0 && html`<${Question} row=${asking[0]} more=${asking.slice(1)} run=${run} id=${id} choose=${choose} reload=${reload} />`}
    ${isOver(run.status) ? view !== "output" && html`<${Answer} id=${id} at=${at} concerns=${concerns} />` : !at && html`<${Now} run=${run} step=${step} choose=${choose} />`}
  </div>`;
}

/** What a first run shows, on the page of that run. @param {{run: any}} props */
function Intro({ run }) {
  return html`<section class="card padded intro" aria-label="About this run">
    <div class="section-head"><h2>Your first run</h2><button class="button plain small more" onClick=${() => setQuery({ intro: null })}>Close</button></div>
    <ul class="prose"><li>${isOver(run.status) ? html`The <strong>answer</strong> is the first thing below.` : html`The <strong>answer</strong> appears here when the run has finished. Until then you see what each agent writes.`}</li>
      <li>The <strong>graph</strong> below has one box per step. Select one for its prompt, conversation, output and files.</li>
      <li><strong>Replay</strong> shows the run at any earlier moment. Nothing is called again.</li>
      <li>The texts are scripted. <a href=${`/recipes/${encodeURIComponent(run.recipe)}?view=run`}>Run it with a model</a>, or <a href=${`/recipes/${encodeURIComponent(run.recipe)}?view=source`}>read the recipe</a>.</li></ul>
  </section>`;
}

/** The path of the step that failed; empty for a failure of the run itself. @param {any} run */
export const pathOf = (run) => (run.error.step ? [run.execution_path, run.error.step].filter(Boolean).join("/") : "");

/** The failure or pause, with the way to its step. @param {{run: any, rows: any[], step: string | null, choose: (path: string) => void}} props */
function Failure({ run, rows, step, choose }) {
  const path = pathOf(run);
  const row = rows.find((one) => one.path === path);
  const tone = isOver(run.status) ? "failed" : "wants";
  return html`<section class=${`notice asks tone-${tone}`} aria-label=${isOver(run.status) ? "Failure" : "Why it is paused"}>
    <div class="grow">${path && html`<h2>${row?.name ?? path} ${row && html`<${Status} status=${row.status} />`}</h2>`}<div class=${path ? "failure" : ""}>${path ? run.error.message : html`<strong>${run.error.message.charAt(0).toUpperCase()}${run.error.message.slice(1)}</strong>`}</div>${run.error.hint && html`<div class="hint">${run.error.hint}</div>`}</div>
    ${path && html`<code class="quiet small hide-narrow">${run.error.code}</code>`}${path && path !== step && html`<button class="button small" onClick=${() => choose(path)} aria-label=${`View ${path}`}>View</button>`}
  </section>`;
}

/** The first open question with its form, and the others as links. @param {any} props */
function Question({ row, more, run, id, choose, reload }) {
  return html`<section class="card padded question" aria-label=${`Question of ${row.name}`}>
    <h2><button class="as-link" onClick=${() => choose(row.path)}>${row.name}</button> <${Status} status=${row.status} /></h2>
    <${AnswerHere} runs=${[id, run.root_run_id]} path=${row.path} onAnswered=${reload} />
    ${more.length > 0 && html`<p class="quiet small">Also waiting: ${more.map((/** @type {any} */ one) => html`<button class="as-link" key=${one.path} onClick=${() => choose(one.path)}>${one.name}</button> `)}</p>`}
  </section>`;
}

/** The output of a finished run; a long one is cut to its first lines until it is opened. @param {{id: string, at: string | null, concerns: any}} props */
function Answer({ id, at, concerns }) {
  const [open, setOpen] = useState(false);
  const found = useResource(withQuery(`/runs/${id}/output`, { at }), concerns);
  const value = found.data?.output;
  if (value === null || value === undefined || value === "") return null;
  const text = asText(value);
  const long = text.length > LONG_CHARS || text.split("\n").length > LONG_LINES;
  const changes = found.data.changes || [];
  return html`<section class="card padded answer-card" aria-label="Answer">
    <div class=${long && !open ? "cut" : ""}><${Output} value=${long && !open ? text.slice(0, CUT_CHARS) : value} /></div>
    <p class="quiet small">${long && html`<button class="as-link" onClick=${() => setOpen(!open)}>${open ? "Show less" : `Show all ${amount(text.length)} characters`}</button>`}
      ${changes.length > 0 && html`<span>Changed ${changes.slice(0, 4).map((/** @type {any} */ one) => html`<code key=${one.path}>${one.path}</code> `)}${changes.length > 4 ? `and ${counted(changes.length - 4, "more file")}` : ""}</span>`}</p>
  </section>`;
}

/** What each running agent says or does, as it happens. @param {{run: any, step: string | null, choose: (path: string) => void}} props */
function Now({ run, step, choose }) {
  const working = Object.values(activity.value).filter((one) => one.run_id === run.root_run_id && one.words);
  if (!working.length) return null;
  return html`<section class="card now" aria-label="Running agents"><ul class="list">${working.slice(0, MOST_AGENTS).map((one) => html`<li key=${one.path} class=${one.path === step ? "chosen" : ""}>
    <button class="as-link" onClick=${() => choose(one.path)}>${one.path}</button><span class="grow clip">${plain(one.words)}</span>${one.tokens > 0 && html`<span class="quiet small number">${amount(one.tokens)} tokens</span>`}</li>`)}</ul>
    ${working.length > MOST_AGENTS && html`<p class="quiet small padded">${counted(working.length - MOST_AGENTS, "more agent")}</p>`}</section>`;
}
