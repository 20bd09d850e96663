/** The conversation of an agent: prompt, responses, and each tool call with its result. */
import { html, useLayoutEffect, useRef } from "../vendor/preact.js";
import { quoted, withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { activity } from "../live/stream.js";
import { amount, asText, cost, counted, exact } from "../text/format.js";
import { languageOf } from "../text/highlight.js";
import { Markdown } from "../text/markdown.js";
import { Code, Copy, Json } from "./code.js";
import { Loaded } from "./states.js";
import { Ago } from "./time.js";

/** In pixels. */
const NEAR_END = 240;

/** @param {{run: string, path: string, at: string | null, live: boolean, concerns: any}} props */
export function Transcript({ run, path, at, live, concerns }) {
  const found = useResource(withQuery(`/runs/${run}/steps/${quoted(path)}/transcript`, { at }), live ? concerns : false);
  const doing = activity.value[`${run}:${path}`];
  return html`<${Loaded} of=${found}>${(/** @type {any} */ data) => html`<${Talk} talk=${data} />`}</${Loaded}>
    ${live && doing?.text && html`<${Writing} text=${doing.text} />`}`;
}

/** The response that the agent is writing; who reads its end sees it grow. @param {{text: string}} props */
function Writing({ text }) {
  const here = useRef(/** @type {HTMLDivElement | null} */ (null));
  useLayoutEffect(() => {
    const panel = here.current?.closest(".step-body");
    if (panel && panel.scrollTop + panel.clientHeight > panel.scrollHeight - NEAR_END) panel.scrollTop = panel.scrollHeight;
  }, [text]);
  return html`<div class="turn response writing" ref=${here}><div class="by"><b>Response</b><span>being written; its latest text</span></div><${Markdown} text=${text} /></div>`;
}

/** @param {{talk: any}} props */
export function Talk({ talk }) {
  const facts = [talk.role, talk.model || talk.backend, counted(talk.turns, "turn"), `${amount(talk.usage.input_tokens + talk.usage.output_tokens)} tokens`, cost(talk.usage)];
  const { entries, results } = paired(talk.entries);
  return html`<p class="quiet small">${facts.filter(Boolean).join(" · ")}</p>
    ${talk.system && html`<details class="system"><summary>System prompt</summary><pre class="block" tabindex="0">${talk.system}</pre></details>`}
    <ol class="turns">${entries.map((/** @type {any} */ entry, /** @type {number} */ i) => html`<${Entry} key=${i} entry=${entry} results=${results} />`)}</ol>
    ${!talk.entries.length && html`<p class="quiet">No entries yet.</p>`}`;
}

/** A result belongs to the call that asked for it, and a call to the response that made it. @param {any[]} all */
function paired(all) {
  const keyOf = (/** @type {any} */ entry, /** @type {string} */ id) => `${entry.session_id} ${entry.attempt} ${entry.turn} ${id}`;
  const called = new Set(all.flatMap((entry) => (entry.tool_calls || []).map((/** @type {any} */ call) => keyOf(entry, call.id))));
  /** @type {Map<string, any>} */
  const results = new Map();
  const entries = all.filter((entry) => {
    const known = entry.id && called.has(keyOf(entry, entry.id));
    if (known && entry.kind === "tool_result") results.set(keyOf(entry, entry.id), entry);
    return !(known && ["tool_call", "tool_result"].includes(entry.kind));
  });
  return { entries, results: (/** @type {any} */ entry, /** @type {any} */ call) => results.get(keyOf(entry, call.id)) };
}

/** @type {Record<string, string>} */
const NAMES = { input: "Prompt", response: "Response", tool_call: "Tool call", tool_result: "Tool result", compaction: "Summary of earlier turns", failed_request: "Failed request", queued_request: "Waiting request", stage: "Stage", stage_end: "End of stage" };

/** @param {{entry: any, results: (entry: any, call: any) => any}} props */
function Entry({ entry, results }) {
  const calls = entry.tool_calls || [];
  const bare = entry.kind === "response" && !entry.text && entry.output === undefined;
  return html`<li class=${`turn ${entry.kind} ${entry.kind === "input" ? "prompt" : ""} ${bare ? "bare" : ""}`}>
    ${!bare && html`<div class="by"><b>${NAMES[entry.kind] || entry.kind}</b>${entry.tool && html`<code>${entry.tool}</code>`}${entry.model && html`<span>${entry.model}</span>`}${entry.usage && html`<span class="number">${amount(entry.usage.input_tokens + entry.usage.output_tokens)} tokens · ${cost(entry.usage)}</span>`}<${Ago} at=${entry.at} />
      ${entry.text && html`<${Copy} text=${entry.text} label=${`Copy the ${(NAMES[entry.kind] || "text").toLowerCase()}`} />`}</div>`}
    ${entry.text && (entry.kind === "response" ? html`<${Markdown} text=${entry.text} />` : html`<${Long} text=${entry.text} />`)}
    ${entry.args !== undefined && html`<${Shown} value=${entry.args} />`}
    ${entry.result !== undefined && html`<${Shown} value=${entry.result} />`}
    ${entry.error && html`<div class="notice tone-failed">${entry.error.message || asText(entry.error)}${entry.next_attempt ? ` · next attempt at ${exact(Date.parse(entry.next_attempt))}` : ""}</div>`}
    ${!entry.text && entry.output !== undefined && html`<${Shown} value=${entry.output} />`}
    ${calls.map((/** @type {any} */ call) => html`<${Tool} key=${call.id} call=${call} result=${results(entry, call)} />`)}
  </li>`;
}

/** One tool call in a line; its arguments and result when it is opened. @param {{call: any, result: any}} props */
function Tool({ call, result }) {
  const failed = Boolean(result?.error);
  const exit = result?.result?.exit_code;
  const size = result && !failed ? asText(result.result ?? "").length : 0;
  return html`<details class=${`tool ${failed ? "tone-failed" : ""}`}>
    <summary><code>${call.tool || call.name}</code><span class="clip quiet">${briefly(call.args)}</span><span class=${`small ${failed ? "wrong" : "quiet"}`}>${failed ? "failed" : exit ? `exit ${exit}` : result ? `${amount(size)} characters` : "no result"}</span></summary>
    ${call.args !== undefined && html`<h4>Arguments</h4><${Shown} value=${call.args} />`}
    ${result && html`<h4>Result</h4>${failed ? html`<div class="notice tone-failed">${result.error.message || asText(result.error)}</div>` : html`<${Shown} value=${result.result} />`}`}
  </details>`;
}

/** The argument that names what a call is about. @param {any} args */
function briefly(args) {
  if (args === null || typeof args !== "object") return asText(args ?? "").slice(0, 200);
  const main = ["path", "argv", "command", "pattern", "query", "url", "glob"].map((name) => args[name]).find((value) => value !== undefined) ?? Object.values(args)[0] ?? "";
  return (Array.isArray(main) ? main.map(asText).join(" ") : asText(main)).replace(/\s+/g, " ").slice(0, 200);
}

/** A text as it is, a file in its colours, anything else as a tree. @param {{value: any}} props */
function Shown({ value }) {
  if (typeof value === "string") return value.length > 4000 ? html`<details><summary>${value.slice(0, 120)}… <span class="quiet">${amount(value.length)} characters</span></summary><${Code} text=${value} /></details>` : html`<${Code} text=${value} />`;
  if (value && typeof value === "object" && typeof value.text === "string" && typeof value.path === "string") return html`<p class="small quiet mono">${value.path}</p><${Code} text=${value.text} language=${languageOf(value.path)} name=${value.path} />`;
  return html`<${Json} value=${value} />`;
}

/** A prompt as it is, letter by letter; a long one is folded. @param {{text: string}} props */
function Long({ text }) {
  const body = html`<pre class="as-is">${text}</pre>`;
  if (text.length < 1200) return body;
  return html`<details><summary>${text.slice(0, 300)}… <span class="quiet">${amount(text.length)} characters</span></summary>${body}</details>`;
}
