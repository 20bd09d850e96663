/** Recipes: which there are, and how they did lately. */
import { html } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { Loaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Ago, Heartbeat } from "../parts/time.js";
import { PageHead } from "../shell/frame.js";
import { duration } from "../text/format.js";
import { Price } from "../parts/cost.js";

/** @type {Record<string, string>} */
const ORIGINS = { project: "This project", user: "Yours", builtin: "Built in" };

export function Recipes() {
  const found = useResource("/recipes", true);
  return html`<div class="page">
    <${PageHead} title="Recipes" lead="A recipe is a YAML file: inputs, a graph of steps, an output." actions=${html`<a class="button" href="/recipes/new?view=source">New recipe</a>`} />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => Object.entries(ORIGINS).map(([origin, name]) => {
      const here = data.items.filter((/** @type {any} */ row) => row.source === origin);
      if (!here.length && origin !== "project") return null;
      return html`<section key=${origin} aria-label=${name}><div class="section-head"><h2>${name}</h2></div>
        ${here.length ? html`<${Shelf} rows=${here} />` : html`<p class="card padded quiet">This project has no recipe yet. Open a built-in one, edit it, and save it under another name. It is stored in <code>.fanfold/workflows</code>.</p>`}</section>`;
    })}</${Loaded}>
  </div>`;
}

/** @param {{rows: any[]}} props */
function Shelf({ rows }) {
  return html`<div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table class="shelf">
    <thead><tr><th scope="col">Recipe</th><th scope="col" class="last">Last run</th><th scope="col" class="number figure hide-narrow">Median time</th><th scope="col" class="number figure hide-narrow">Median cost</th><th scope="col" class="press"><span class="unseen">Run</span></th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.name}>
      <td class="words"><a class="row-link" href=${`/recipes/${row.name}`}>${row.name}</a> <span class="quiet small">@${row.version}</span><div class="quiet small about">${row.description}</div></td>
      <td class="last">${row.last_run ? html`<a href=${`/runs/${row.last_run.run_id}`}><${Status} status=${row.last_run.status} /></a> <div class="small hide-narrow">${row.last_run.status === "running" ? html`<${Heartbeat} root=${row.last_run.run_id} status="running" />` : html`<span class="quiet"><${Ago} at=${row.last_run.ended_at || row.last_run.created_at} /></span>`}</div>` : html`<span class="quiet">never</span>`}</td>
      <td class="number hide-narrow">${row.median_s === null || row.median_s === undefined ? "" : duration(row.median_s * 1000)}</td>
      <td class="number hide-narrow">${row.median_s === null || row.median_s === undefined ? "" : html`<${Price} usd=${row.median_usd} />`}</td>
      <td class="number"><a class="button small" href=${`/recipes/${row.name}?view=run`} aria-label=${`Run ${row.name}`}>Run</a></td>
    </tr>`)}</tbody>
  </table></div>`;
}
