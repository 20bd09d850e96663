/** Live comparisons of models: how often each passes a case, what a run costs, and how long it takes. */
import { html } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { Empty, Loaded } from "../parts/states.js";
import { Ago } from "../parts/time.js";
import { PageHead } from "../shell/frame.js";
import { duration, money } from "../text/format.js";

export function Comparisons() {
  const found = useResource("/comparisons");
  return html`<div class="page wide">
    <${PageHead} title="Models compared" lead="Recorded runs, repeated live on several models." />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => data.items.length ? data.items.map((/** @type {any} */ one) => html`<${Rows} key=${one.at} of=${one} />`) : html`<${Empty} title="No comparison yet"><p>Record a run, then repeat it on several models:</p><p><code>fanfold test --model A --model B --repeat 10 --budget-usd 2</code></p></${Empty}>`}</${Loaded}>
  </div>`;
}

/** @param {{of: any}} props */
function Rows({ of }) {
  return html`<section aria-label="One comparison"><div class="section-head"><h2><${Ago} at=${of.at} /></h2></div>
    <div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table><thead><tr><th scope="col">Case</th><th scope="col">Model</th><th scope="col" class="number">Passed</th><th scope="col" class="number">95 % interval</th><th scope="col" class="number">Cost of a run</th><th scope="col" class="number">Time of a run</th><th scope="col">Problems</th></tr></thead>
      <tbody>${of.rows.map((/** @type {any} */ row) => html`<tr key=${`${row.case} ${row.model}`}><td>${row.case}</td><td class="mono">${row.model}</td><td class="number">${row.passed}/${row.runs}</td><td class="number">${percent(row.low)} to ${percent(row.high)}</td><td class="number">${money(row.usd)}</td><td class="number">${duration(row.seconds * 1000)}</td><td>${row.problems.map((/** @type {string} */ one) => html`<p key=${one}>${one}</p>`)}</td></tr>`)}</tbody></table></div></section>`;
}

/** @param {number} share */
const percent = (share) => `${Math.round(share * 100)} %`;
