/** One step on a page of its own. */
import { html } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { StepPanel } from "../parts/step-panel.js";
import { useResource } from "../live/resource.js";
import { useTitle } from "../shell/frame.js";
import { query } from "../shell/route.js";

/** @param {{first: string, second: string}} props */
export function Step({ first: run, second: path }) {
  const at = query.value.get("at");
  const head = useResource(withQuery(`/runs/${run}/head`, { at }));
  useTitle(path);
  return html`<div class="page">
    <nav aria-label="Where this is"><ol class="crumbs"><li><a href="/runs">Runs</a></li><li><a href=${`/runs/${run}${at ? `?at=${at}` : ""}`}>${head.data ? `${head.data.recipe} ` : ""}<span class="mono">${run}</span></a></li><li>${path}</li></ol></nav>
    <h1 class="unseen">Step ${path}</h1>
    <div class="card step-card"><${StepPanel} run=${run} path=${path} at=${at} until=${at ? head.data?.at : null} concerns=${(/** @type {any} */ event) => !at && event.run_id === (head.data?.root_run_id ?? event.run_id)} /></div>
  </div>`;
}
