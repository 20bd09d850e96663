/** Everything about one step: prompt with the sources of its values, output, conversation, attempts, files, and why. */
import { html, useState } from "../vendor/preact.js";
import { post, quoted, withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { notify, notifyError } from "../shell/notices.js";
import { amount, counted, lastOf } from "../text/format.js";
import { AnswerHere } from "./answer-form.js";
import { Artifact } from "./artifacts.js";
import { Copy } from "./code.js";
import { CopyAs } from "./copy-as.js";
import { Cost } from "./cost.js";
import { Diff } from "./diff.js";
import { Output } from "./output.js";
import { Loaded } from "./states.js";
import { Status, isOver } from "./status.js";
import { PanelTabs } from "./tabs.js";
import { Ago, StepHeartbeat, Took } from "./time.js";
import { Transcript } from "./transcript.js";

/** A longer cause is cut on top of the page. */
const BRIEF = 240;
const TABS = [["output", "Output"], ["prompt", "Prompt"], ["transcript", "Transcript"], ["attempts", "Attempts"], ["files", "Files"], ["artifacts", "Artifacts"], ["inside", "Inside"], ["why", "Why"]];

/** `caused`: the step whose failure the page shows already. `resting`: the run is paused. `until`: the time of the replay. @param {{run: string, path: string, at: string | null, concerns: any, caused: string, resting: boolean, until: string | null, onClose: () => void}} props */
export function StepDrawer({ run, path, at, concerns, caused, resting, until, onClose }) {
  return html`<aside class="drawer" aria-label=${`Step ${path}`}><${StepPanel} run=${run} path=${path} at=${at} concerns=${concerns} caused=${caused} resting=${resting} until=${until} onClose=${onClose} /></aside>`;
}

/** @param {{run: string, path: string, at: string | null, concerns: any, caused?: string, resting?: boolean, until?: string | null, onClose?: () => void}} props */
export function StepPanel({ run, path, at, concerns, caused, resting, until, onClose }) {
  const [tab, setTab] = useState("");
  const found = useResource(withQuery(`/runs/${run}/steps/${quoted(path)}`, { at }), concerns);
  const step = found.data;
  const chosen = tab || firstTab(step);
  const tabs = TABS.filter(([id]) => hasTab(step, id)).map(([id, name]) => ({ id, name }));
  return html`
    <div class="drawer-head">
      <div class="line"><h2 title=${path}>${lastOf(path)}</h2>${step && html`<${Status} status=${step.status === "waiting" && (step.reason === "interrupted" || (resting && !step.approval)) ? "interrupted" : step.status} pill />`}
        ${onClose && html`<span class="close"><a class="button plain small" href=${`/runs/${run}/steps/${path.split("/").map(encodeURIComponent).join("/")}${at ? `?at=${at}` : ""}`}>Open page</a><button class="button plain small" onClick=${onClose} aria-label="Close the step" title="Close (Esc)">✕</button></span>`}</div>
      ${step && html`<div class="run-facts">
        ${lastOf(path) !== path && html`<span class="mono">${path}</span>`}
        ${step.role && html`<span>${step.role}</span>`}
        ${!at && step.status === "running" && html`<${StepHeartbeat} root=${step.root_run_id} path=${step.tree_path} />`}
        ${step.started_at && html`<span><b><${Took} from=${step.started_at} to=${isOver(step.status) ? step.ended_at : step.stopped_at ?? until} /></b></span>`}
        ${step.usage && html`<span><b><${Cost} usage=${step.usage} named /></b></span>${step.usage.input_tokens + step.usage.output_tokens > 0 && html`<span>${amount(step.usage.input_tokens + step.usage.output_tokens)} tokens</span>`}`}
        ${step.attempts > 1 && html`<span>${step.attempts} attempts</span>`}
        ${step.started_at && html`<span class="quiet"><${Ago} at=${step.started_at} /></span>`}
        ${step.child_run_id && html`<a href=${`/runs/${step.child_run_id}`}>child run</a>`}
      </div>`}
    </div>
    <${PanelTabs} label="About the step" tabs=${tabs} chosen=${chosen} onChoose=${setTab} controls="step-panel" />
    <div class="step-body" id="step-panel" role="tabpanel" aria-labelledby=${`step-panel-${chosen}`} tabindex="0">
      <${Loaded} of=${found}>${(/** @type {any} */ data) => html`<${Body} tab=${chosen} step=${data} run=${run} path=${path} at=${at} concerns=${concerns} known=${caused === path} reload=${found.reload} />`}</${Loaded}>
    </div>`;
}

/** What a step shows first: its conversation while it runs or after it failed, why it has not run, else its output. @param {any} step */
function firstTab(step) {
  if (!step || step.approval) return "output";
  if (["pending", "ready", "skipped"].includes(step.status)) return "why";
  return step.session_id && (step.error || !isOver(step.status) || step.role === "lead") ? "transcript" : "output";
}

/** @param {any} step @param {string} id */
function hasTab(step, id) {
  if (!step) return ["output", "prompt", "why"].includes(id);
  if (id === "transcript") return Boolean(step.session_id);
  if (id === "prompt") return Boolean(step.prompt?.text || step.task);
  if (id === "attempts") return (step.tries?.length || 0) > 0;
  if (id === "files") return Boolean(step.files?.length || step.changes?.length);
  if (id === "artifacts") return Boolean(step.artifacts?.length);
  if (id === "inside") return Boolean(step.inside?.length);
  return true;
}

/** @param {any} props */
function Body({ tab, step, run, path, at, concerns, known, reload }) {
  const error = known && step.error?.message.length <= BRIEF ? null : step.error;
  if (tab === "prompt") return html`<${Prompt} step=${step} run=${run} />`;
  if (tab === "transcript") return html`<${Transcript} run=${run} path=${path} at=${at} live=${!at && !isOver(step.status)} concerns=${concerns} />${error && html`<${Failure} error=${error} />`}`;
  if (tab === "attempts") return html`<${Attempts} list=${step.tries} />`;
  if (tab === "files") return html`<${Files} step=${step} run=${run} path=${path} reload=${reload} />`;
  if (tab === "artifacts") return html`<p class="quiet small">Files that it left beside the project, for steps after it and for you.</p><ul class="changes">${step.artifacts.map((/** @type {any} */ one) => html`<${Artifact} key=${one.path} one=${one} />`)}</ul>`;
  if (tab === "inside") return html`<ul class="list card">${step.inside.map((/** @type {string} */ one) => html`<li key=${one}><a href=${`/runs/${run}?step=${encodeURIComponent(one)}`}>${one}</a></li>`)}</ul>`;
  if (tab === "why") return html`<${Why} step=${step} run=${run} path=${path} at=${at} concerns=${concerns} />`;
  return html`
    ${error && html`<${Failure} error=${error} />`}
    ${step.warning && html`<${Failure} error=${step.warning} tone="wants" />`}
    ${step.approval && !at && html`<${AnswerHere} runs=${[run, step.root_run_id]} path=${step.tree_path} onAnswered=${reload} />`}
    ${(!step.approval || at) && html`<${Output} value=${step.output} empty=${isOver(step.status) ? "This step has no output." : "There is no output yet."} />`}`;
}

/** @param {{error: any, tone?: string}} props */
function Failure({ error, tone = "failed" }) {
  return html`<div class=${`notice tone-${tone}`}><strong>${error.message}</strong>${error.hint && html`<div class="hint">${error.hint}</div>`}<div class="quiet small mono">${error.code} (${error.class})</div></div>`;
}

/** The prompt with each inserted value marked, and linked to where it came from. @param {{step: any, run: string}} props */
function Prompt({ step, run }) {
  const text = step.prompt?.text ?? step.task ?? "";
  const parts = [...(step.prompt?.parts || [])].sort((a, b) => a.from - b.from);
  const pieces = [];
  let reached = 0;
  for (const part of parts) {
    if (part.from < reached) continue;
    pieces.push(text.slice(reached, part.from));
    const source = String(part.source);
    const words = text.slice(part.from, part.to);
    pieces.push(part.step ? html`<a class="origin" href=${`/runs/${run}?step=${encodeURIComponent(part.step)}`} title=${`from ${source}`}>${words}</a>` : html`<mark class="origin" title=${`from ${source}`}>${words}</mark>`);
    reached = part.to;
  }
  pieces.push(text.slice(reached));
  const sources = [...new Set(parts.map((part) => part.source))];
  return html`${sources.length > 0 && html`<p class="quiet small">Inserted: ${sources.map((source) => html`<span class="chip" key=${source}>${source}</span> `)}</p>`}<div class="code-box"><${Copy} text=${text} label="Copy the prompt" /><pre class="block" tabindex="0">${pieces}</pre></div>`;
}

/** @param {{list: any[]}} props */
function Attempts({ list }) {
  return html`<ul class="card list">${list.map((one, i) => html`<li key=${i}><b class="number">${one.attempt ?? i + 1}</b><${Status} status=${one.status} /><div class="grow beside quiet">${one.error?.message || one.message || ""}</div>
    <span class="quiet small"><${Took} from=${one.started_at} to=${one.ended_at ?? one.started_at} /> · <${Ago} at=${one.started_at} /></span></li>`)}</ul>`;
}

/** @param {{step: any, run: string, path: string, reload: () => void}} props */
function Files({ step, run, path, reload }) {
  const apply = () => post(`/runs/${run}/steps/${quoted(path)}/apply`).then((done) => { notify(`${counted(done.changes.length, "file")} put into the project.`); reload(); }, notifyError);
  const files = step.files || [];
  if (!files.length) return html`<${Names} changes=${step.changes} />`;
  return html`${files.map((/** @type {any} */ one) => html`<div class="changed-files" key=${one.path}>
    <p class="row"><span class="chip">${one.state.replaceAll("_", " ")}</span>${one.why && html`<span class="quiet small">${one.why}</span>`}${one.state === "proposed" && html`<button class="button small" onClick=${apply}>Apply</button> <${CopyAs} action="apply" words=${{ run, step: path }} />`}</p>
    ${one.patch ? html`<${Diff} patch=${one.patch} command=${`fanfold diff ${run} '${path}'`} />` : html`<${Names} changes=${one.changes || []} />`}</div>`)}`;
}

/** @param {{changes: any[]}} props */
const Names = ({ changes }) => html`<ul class="changes">${changes.map((change) => html`<li key=${change.path}><span class="chip">${change.kind}</span> <code>${change.path}</code> <span class="quiet">${change.state}</span></li>`)}</ul>`;

/** Why it is where it is; of the past only what stood in the step itself. @param {{step: any, run: string, path: string, at: string | null, concerns: any}} props */
function Why({ step, run, path, at, concerns }) {
  const found = useResource(at ? null : `/runs/${run}/steps/${quoted(path)}/explain`, concerns);
  const why = found.data ?? step.why;
  const used = found.data?.used;
  return html`<p class="statement">${why.message}</p>
    ${step.error && html`<p class="quiet small">${step.error.hint && html`${step.error.hint} · `}<code>${step.error.code}</code> (${step.error.class})</p>`}
    ${why.ran_then && html`<p>${sentence(why.ran_then)}</p>`}
    ${why.blocked_by?.length > 0 && html`<p class="chips">${why.blocked_by.slice(0, MOST_NAMES).map((/** @type {string} */ one) => html`<a class="chip" key=${one} href=${`/runs/${run}?step=${encodeURIComponent(one)}`}>${one}</a>`)}</p>`}
    ${why.history?.length > 0 && html`<div><h3>What happened</h3><ol class="history">${why.history.map((/** @type {any} */ one, /** @type {number} */ i) => html`<li key=${i}><span class="quiet small"><${Ago} at=${one.at} /></span><span>${one.text}</span></li>`)}</ol></div>`}
    ${used && html`<${Used} title="What it read" names=${used.reads} unseen=${used.unseen_reads} /><${Used} title="What it changed" names=${used.writes} unseen=${used.unmerged || used.unseen_writes} />`}`;
}

/** @param {string} words */
const sentence = (words) => `${words.charAt(0).toUpperCase()}${words.slice(1)}.`;
const MOST_NAMES = 50;

/** @param {{title: string, names: string[], unseen: string}} props */
function Used({ title, names, unseen }) {
  if (!names.length && !unseen) return null;
  return html`<div><h3>${title}</h3><ul class="changes">${names.slice(0, MOST_NAMES).map((name) => html`<li key=${name}><code>${name}</code></li>`)}</ul>
    ${names.length > MOST_NAMES && html`<p class="quiet small">and ${counted(names.length - MOST_NAMES, "more file")}</p>`}${unseen && html`<p class="quiet small">${unseen}</p>`}</div>`;
}
