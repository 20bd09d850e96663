/** Two runs side by side: what went in, what came out, what it took. */
import { html, useState } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { Loaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Output } from "../parts/output.js";
import { PageHead } from "../shell/frame.js";
import { Took, endOf } from "../parts/time.js";
import { amount, asText, cost, duration } from "../text/format.js";

/** @param {{first: string, second: string}} props */
export function Compare({ first, second }) {
  const found = useResource(`/compare/${first}/${second}`, (event) => event.run_id === first || event.run_id === second);
  const [all, setAll] = useState(false);
  return html`<div class="page wide">
    <${PageHead} title="Compare" actions=${html`<label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> Show equal steps</label>`} />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => html`<${Sides} data=${data} all=${all} />`}</${Loaded}>
  </div>`;
}

/** @param {{data: any, all: boolean}} props */
function Sides({ data, all }) {
  const steps = data.steps.filter((/** @type {any} */ step) => all || !step.same);
  const inputs = (data.inputs || []).filter((/** @type {any} */ one) => all || !one.same);
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label="The two runs"><table><thead><tr><th scope="col" class="hide-narrow"><span class="unseen">Which</span></th><th scope="col">Run</th><th scope="col" class="hide-narrow">Recipe</th><th scope="col">Status</th><th scope="col" class="number">Time</th><th scope="col" class="number hide-narrow">Tokens</th><th scope="col" class="number">Cost</th></tr></thead>
      <tbody>${[["First", data.a], ["Second", data.b]].map(([name, run]) => html`<tr key=${name}><th scope="row" class="hide-narrow">${name}</th><td><a class="mono" href=${`/runs/${run.run_id}`}>${run.run_id}</a>${run.forked_from ? html` <span class="chip">fork</span>` : ""}</td><td class="hide-narrow">${run.recipe}@${run.version}</td><td><${Status} status=${run.status} /></td><td class="number"><${Took} from=${run.started_at || run.created_at} to=${endOf(run)} /></td><td class="number hide-narrow">${amount(run.usage.input_tokens + run.usage.output_tokens)}</td><td class="number">${cost(run.usage)}</td></tr>`)}</tbody></table></div>
    <${Changed} recipe=${data.recipe} />
    ${inputs.length > 0 && html`<section><div class="section-head"><h2>Inputs</h2></div><div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table><thead><tr><th scope="col">Input</th><th scope="col">First</th><th scope="col">Second</th></tr></thead>
      <tbody>${inputs.map((/** @type {any} */ one) => html`<tr key=${one.name}><td>${one.name}</td><td><${Given} value=${one.a} /></td><td><${Given} value=${one.b} /></td></tr>`)}</tbody></table></div></section>`}
    <section><div class="section-head"><h2>Steps</h2><span class="more quiet">${data.steps.length - data.steps.filter((/** @type {any} */ step) => step.same).length} of ${data.steps.length} differ</span></div>
      ${steps.length ? html`<ul class="card list">${steps.map((/** @type {any} */ step) => html`<li key=${step.path}><details class="grow compared" open=${!step.same && steps.length < 8}>
        <summary><span class="clip"><code title=${step.path}>${step.path}</code> ${step.same ? html`<span class="chip">same</span>` : ""}</span><${Brief} side=${step.a} /><${Brief} side=${step.b} /></summary>
        <div class="compare-output"><${Side} side=${step.a} label="First" /><${Side} side=${step.b} label="Second" /></div></details></li>`)}</ul>` : html`<p class="card padded quiet">All steps have the same output.</p>`}
    </section>`;
}

/** @param {{value: any}} props */
const Given = ({ value }) => value === null || value === undefined ? html`<span class="quiet">not given</span>` : html`<code>${asText(value)}</code>`;

/** How the recipe differs. @param {{recipe: any}} props */
function Changed({ recipe }) {
  const words = { added: "Added", removed: "Removed", changed: "Changed", tuned: "Tuned", roles: "Roles", others: "Other parts" };
  const rows = Object.entries(words).filter(([key]) => recipe?.[key]?.length);
  if (!rows.length) return null;
  return html`<section><div class="section-head"><h2>Recipe</h2></div><dl class="pairs card padded">${rows.map(([key, word]) => html`<dt key=${key}>${word}</dt><dd class="chips">${recipe[key].map((/** @type {string} */ one) => html`<span class="chip" key=${one}>${one}</span>`)}</dd>`)}</dl></section>`;
}

/** @param {{side: any}} props */
const Brief = ({ side }) => side ? html`<span><${Status} status=${side.status} /><span class="side-figures quiet small number"><span>${side.seconds === null ? "" : duration(side.seconds * 1000)}</span><span>${cost(side.usage)}</span></span></span>` : html`<span class="quiet">no such step</span>`;
/** @param {{side: any, label: string}} props */
const Side = ({ side, label }) => html`<div><div class="label small quiet">${label}</div>${side && side.output !== null ? html`<${Output} value=${side.output} />` : html`<p class="quiet small">No output.</p>`}</div>`;
