/** Two runs side by side: what went in, what came out, what it took. */
import { html, useState } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { Loaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { PageHead } from "../shell/frame.js";
import { asText, duration, money } from "../text/format.js";

/** @param {{first: string, second: string}} props */
export function Compare({ first, second }) {
  const found = useResource(`/compare/${first}/${second}`, (event) => event.run_id === first || event.run_id === second);
  const [all, setAll] = useState(false);
  return html`<div class="page wide">
    <${PageHead} title="Compare" lead=${html`<a class="mono" href=${`/runs/${first}`}>${first}</a> and <a class="mono" href=${`/runs/${second}`}>${second}</a>`}
      actions=${html`<label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> Show what is the same</label>`} />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => html`<${Sides} data=${data} all=${all} />`}</${Loaded}>
  </div>`;
}

/** @param {{data: any, all: boolean}} props */
function Sides({ data, all }) {
  const steps = data.steps.filter((/** @type {any} */ step) => all || !step.same);
  const inputs = (data.inputs || []).filter((/** @type {any} */ one) => all || !one.same);
  return html`
    ${inputs.length > 0 && html`<section><div class="section-head"><h2>Inputs</h2></div><div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table><thead><tr><th scope="col">Input</th><th scope="col">First</th><th scope="col">Second</th></tr></thead>
      <tbody>${inputs.map((/** @type {any} */ one) => html`<tr key=${one.name}><td>${one.name}</td><td><code>${asText(one.a)}</code></td><td><code>${asText(one.b)}</code></td></tr>`)}</tbody></table></div></section>`}
    <section><div class="section-head"><h2>Steps</h2><span class="more quiet">${data.steps.length - data.steps.filter((/** @type {any} */ step) => step.same).length} of ${data.steps.length} differ</span></div>
      ${steps.length ? html`<ul class="card list">${steps.map((/** @type {any} */ step) => html`<li key=${step.path}><details class="grow" open=${!step.same && steps.length < 8}>
        <summary><code>${step.path}</code> ${step.same ? html`<span class="chip">same</span>` : ""} <${Brief} side=${step.a} /> <span class="quiet">→</span> <${Brief} side=${step.b} /></summary>
        <div class="compare-output"><${Side} side=${step.a} label="First" /><${Side} side=${step.b} label="Second" /></div></details></li>`)}</ul>` : html`<p class="card padded quiet">Every step gave the same.</p>`}
    </section>`;
}

/** @param {{side: any}} props */
const Brief = ({ side }) => side ? html`<${Status} status=${side.status} /> <span class="quiet small number">${side.seconds === null || side.seconds === undefined ? "" : duration(side.seconds * 1000)} ${side.cost_usd === undefined ? "" : money(side.cost_usd)}</span>` : html`<span class="quiet">not there</span>`;
/** @param {{side: any, label: string}} props */
const Side = ({ side, label }) => html`<div><div class="label small quiet">${label}</div><pre class="block" tabindex="0">${side ? asText(side.output ?? "") : ""}</pre></div>`;
