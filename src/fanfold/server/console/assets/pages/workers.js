/** Workers: the machines of a cluster, what each of them does, and when it was heard last. */
import { html, useEffect } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { Empty, Loaded } from "../parts/states.js";
import { Beat } from "../parts/time.js";
import { PageHead } from "../shell/frame.js";

const EVERY_MS = 5000;

export function Workers() {
  const found = useResource("/workers");
  useEffect(() => {
    const timer = setInterval(() => document.hidden || found.reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  return html`<div class="page">
    <${PageHead} title="Workers" lead="Processes that execute steps and drive runs of this project, on any machine." actions=${html`<button class="button" onClick=${found.reload}>Refresh</button>`} />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => data.items.length ? html`<${Table} rows=${data.items} />` : html`<${Empty} title="No worker is connected"><p>Without a cluster, the process that starts a run executes its steps. Set FANFOLD_TEMPORAL and start <code>fanfold worker</code> to share the work.</p></${Empty}>`}</${Loaded}>
  </div>`;
}

/** @param {{rows: any[]}} props */
const Table = ({ rows }) => html`<div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table><thead><tr><th scope="col">Worker</th><th scope="col">Machine</th><th scope="col">Heartbeat</th><th scope="col">Tags</th><th scope="col">Back ends</th><th scope="col">Slots</th><th scope="col">Version</th><th scope="col">Works on</th></tr></thead>
  <tbody>${rows.map((row) => html`<tr key=${row.name}><td>${row.name}${row.drives && html` <span class="chip">drives</span>`}</td><td>${row.machine} <span class="quiet small">process ${row.pid}</span></td>
    <td>${row.lost ? html`<span class="heartbeat stale">lost</span> ` : ""}<${Beat} age=${row.seen_s * 1000} /></td>
    <td>${row.tags.map((/** @type {string} */ tag) => html`<span class="chip" key=${tag}>${tag}</span>`)}</td><td class="quiet">${row.back_ends.join(", ")}</td><td class="number">${row.slots}</td><td>${row.version} <span class="quiet small">orders ${row.order_version}</span></td>
    <td>${row.jobs.map((/** @type {string} */ job) => html`<${Job} key=${job} id=${job} />`)}</td></tr>`)}</tbody></table></div>`;

/** A run that it drives, or a step that it executes. @param {{id: string}} props */
function Job({ id }) {
  const [root = "", ...rest] = id.split("/");
  const path = rest.slice(0, -1).join("/");
  return html`<div><a href=${path ? `/runs/${root}?step=${encodeURIComponent(path)}` : `/runs/${root}`}>${path || `run ${root}`}</a></div>`;
}
