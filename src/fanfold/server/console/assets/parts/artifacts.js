/** Files that steps left beside the project: each can be taken away, none is shown as a page. */
import { html } from "../vendor/preact.js";
import { quoted, withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { counted, lastOf } from "../text/format.js";

/** @param {{one: any, by?: string}} props */
export const Artifact = ({ one, by }) => html`<li><a href=${`/api/runs/${one.run_id}/artifacts/${quoted(one.name)}`} download=${lastOf(one.name)} title=${one.path}>${one.name}</a> <span class="quiet small number">${counted(one.size, "byte")}${by ? `, ${by}` : ""}</span></li>`;

/** Those of a run and of the runs below it. @param {{id: string, at: string | null, concerns: any}} props */
export function RunArtifacts({ id, at, concerns }) {
  const found = useResource(withQuery(`/runs/${id}/artifacts`, { at }), concerns);
  if (!found.data?.items.length) return null;
  return html`<section class="card padded view"><h2 class="gap-below">Artifacts</h2><ul class="changes">${found.data.items.map((/** @type {any} */ one) => html`<${Artifact} key=${one.path} one=${one} by=${one.step} />`)}</ul></section>`;
}
