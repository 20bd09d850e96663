/** What an agent was told, said and did. */
import { html } from "../vendor/preact.js";
import { quoted, withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { activity } from "../live/stream.js";
import { amount, asText, cost } from "../text/format.js";
import { writeJson } from "../text/json.js";
import { Markdown } from "../text/markdown.js";
import { Loaded } from "./states.js";
import { Ago } from "./time.js";

/** @param {{run: string, path: string, at: string | null, live: boolean, concerns: any}} props */
export function Transcript({ run, path, at, live, concerns }) {
  const found = useResource(withQuery(`/runs/${run}/steps/${quoted(path)}/transcript`, { at }), live ? concerns : false);
  const doing = activity.value[`${run}:${path}`];
  return html`<${Loaded} of=${found}>${(/** @type {any} */ data) => html`<${Talk} talk=${data} />`}</${Loaded}>
    ${live && doing?.words && html`<div class="notice tone-running"><strong>${doing.tool || "now"}</strong> ${doing.words}</div>`}`;
}

/** @param {{talk: any}} props */
export function Talk({ talk }) {
  return html`<p class="quiet small">${talk.role}${talk.model ? ` on ${talk.model}` : ""}, ${talk.backend} · ${talk.turns} turns · ${amount(talk.usage.input_tokens + talk.usage.output_tokens)} tokens · ${cost(talk.usage)}</p>
    ${talk.system && html`<details><summary>System prompt</summary><pre class="block" tabindex="0">${talk.system}</pre></details>`}
    <ol class="turns">${talk.entries.map((/** @type {any} */ entry, /** @type {number} */ i) => html`<${Entry} key=${i} entry=${entry} />`)}</ol>
    ${!talk.entries.length && html`<p class="quiet">Nothing was said yet.</p>`}`;
}

/** @type {Record<string, string>} */
const WHO = { input: "Told", response: "Said", tool_call: "Called", tool_result: "Got", compaction: "Shortened", failed_request: "Failed request", queued_request: "Waiting request", stage: "Stage", stage_end: "End of stage" };

/** @param {{entry: any}} props */
function Entry({ entry }) {
  const told = entry.kind === "input" || entry.kind === "tool_result";
  return html`<li class=${`turn ${told ? "told" : ""}`}>
    <div class="by"><b>${WHO[entry.kind] || entry.kind}</b>${entry.tool && html`<code>${entry.tool}</code>`}${entry.model && html`<span>${entry.model}</span>`}${entry.usage && html`<span class="number">${amount(entry.usage.input_tokens + entry.usage.output_tokens)} tokens · ${cost(entry.usage)}</span>`}<${Ago} at=${entry.at} /></div>
    ${entry.text && (entry.kind === "response" ? html`<${Markdown} text=${entry.text} />` : html`<${Long} text=${entry.text} />`)}
    ${entry.args !== undefined && html`<${Long} text=${asText(entry.args)} />`}
    ${entry.result !== undefined && html`<${Long} text=${asText(entry.result)} />`}
    ${entry.error && html`<div class="notice tone-failed">${entry.error.message || asText(entry.error)}${entry.next_attempt ? ` · tried again at ${entry.next_attempt.slice(11, 19)}` : ""}</div>`}
    ${!entry.text && entry.output !== undefined && html`<${Long} text=${asText(entry.output)} />`}
    ${(entry.tool_calls || []).map((/** @type {any} */ call, /** @type {number} */ i) => html`<p key=${i} class="small clip">→ <code>${call.tool || call.name}</code> ${call.args !== undefined && html`<code class="quiet">${writeJson(call.args).slice(0, 300)}</code>`}</p>`)}
  </li>`;
}

/** @param {{text: string}} props */
function Long({ text }) {
  if (text.length < 1200) return html`<pre class="block" tabindex="0">${text}</pre>`;
  return html`<details><summary>${text.slice(0, 140)}… <span class="quiet">(${amount(text.length)} characters)</span></summary><pre class="block" tabindex="0">${text}</pre></details>`;
}
