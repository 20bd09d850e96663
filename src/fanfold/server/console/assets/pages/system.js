/** System: what `fanfold doctor` finds, and where each setting comes from. */
import { html } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { Loaded } from "../parts/states.js";
import { Sign, toneOf } from "../parts/status.js";
import { PageHead, ThemeChoice } from "../shell/frame.js";

/** @type {Record<string, string>} */
const SIGNS = { ok: "completed", warning: "waiting", error: "failed" };

export function System() {
  const found = useResource("/system");
  return html`<div class="page">
    <${PageHead} title="System" lead="This installation and this project: versions, settings and problems." actions=${html`<a class="button" href="/workers">Workers</a><button class="button" onClick=${found.reload}>Refresh</button>`} />
    <section class="card padded on-phones" aria-label="This browser"><${ThemeChoice} /></section>
    <${Loaded} of=${found}>${(/** @type {any} */ data) => html`
      <dl class="figures"><div><dt>Fanfold</dt><dd>${data.version}</dd></div><div><dt>State</dt><dd>${data.ok ? "no problems" : "has problems"}</dd></div><div class="wide-figure"><dt>Project</dt><dd class="mono small-figure">${data.project}</dd></div></dl>
      <section><div class="section-head"><h2>Checks</h2></div><ul class="card list">${data.checks.map((/** @type {any} */ check) => html`<li key=${check.name}>
        <span class=${`status tone-${toneOf(SIGNS[check.level])}`}><${Sign} status=${SIGNS[check.level]} /><span class="unseen">${check.level}</span></span>
        <div class="grow"><span class="title">${check.name}</span> <span>${check.message}</span>${check.hint && html`<div class="quiet small">${check.hint}</div>`}${check.details?.map((/** @type {string} */ one) => html`<div class="quiet small mono" key=${one}>${one}</div>`)}</div></li>`)}</ul></section>
      <section><div class="section-head"><h2>Settings</h2></div><div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table><thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
        <tbody>${data.config.map((/** @type {any} */ one) => html`<tr key=${one.key}><td><code>${one.key}</code></td><td>${one.value === null ? html`<span class="quiet">not set</span>` : String(one.value)}</td><td class="quiet">${one.origin}</td></tr>`)}</tbody></table></div></section>`}</${Loaded}>
  </div>`;
}
