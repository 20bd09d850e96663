/** Agents: the roles that steps may delegate to, and the sessions that run. */
import { html } from "../vendor/preact.js";
import { quoted } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { activity } from "../live/stream.js";
import { Loaded } from "../parts/states.js";
import { Status } from "../parts/status.js";
import { Heartbeat, Took } from "../parts/time.js";
import { Talk } from "../parts/transcript.js";
import { PageHead } from "../shell/frame.js";
import { plain } from "../text/markdown.js";

export function Agents() {
  const found = useResource("/agents", true);
  return html`<div class="page">
    <${PageHead} title="Agents" lead="A role defines the instructions, model, tools and permissions of an agent." />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => html`
      <section><div class="section-head"><h2>Running sessions</h2></div>
        ${data.sessions?.length ? html`<ul class="card list runs-list">${data.sessions.map((/** @type {any} */ one) => html`<li key=${one.session_id}><${Status} status="running" /><div class="grow"><a class="title" href=${`/agents/${quoted(one.session_id)}`}>${one.role || one.session_id}</a> <span class="quiet small">${one.recipe} / ${one.step}</span><div class="clip quiet small">${plain(activity.value[`${one.run_id}:${one.step}`]?.words || one.task)}</div></div><span class="cell quiet small"><${Heartbeat} root=${one.run_id} status="running" /></span><span class="cell quiet small"><${Took} from=${one.since} /></span></li>`)}</ul>` : html`<p class="card padded quiet">No session is open.</p>`}</section>
      ${data.roles.warnings.map((/** @type {any} */ one) => html`<div class="notice tone-wants" key=${one.file + one.line}><strong>${one.message}</strong><div class="hint mono small">${one.file}:${one.line} ${one.help}</div></div>`)}
      <section><div class="section-head"><h2>Roles</h2></div><ul class="cards">${data.roles.roles.map((/** @type {any} */ role) => html`<li key=${role.name}>
        <h3>${role.name}${role.version ? html`<span class="quiet">@${role.version}</span>` : ""}</h3><p class="quiet">${role.description}</p>
        <div class="foot"><span class="chip">${role.sandbox_mode}</span>${role.model && html`<span class="chip">${role.model}</span>`}${role.backend && html`<span class="chip">${role.backend}</span>`}<span>${role.source}</span></div>
        ${role.instructions && html`<details><summary class="small">Instructions</summary><pre class="block" tabindex="0">${role.instructions}</pre></details>`}
      </li>`)}</ul></section>`}</${Loaded}>
  </div>`;
}

/** @param {{first: string}} props */
export function Agent({ first: session }) {
  const found = useResource(`/agents/${quoted(session)}`, true);
  return html`<div class="page"><${PageHead} title="Session" lead=${html`<span class="mono">${session}</span>`} />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => html`<p><a href=${`/runs/${data.run_id}?step=${encodeURIComponent(data.step)}`}>${data.step}</a> in run <a class="mono" href=${`/runs/${data.run_id}`}>${data.run_id}</a> <span class="quiet"><${Heartbeat} root=${data.root_run_id} status=${data.status} /></span></p><${Talk} talk=${data} />`}</${Loaded}></div>`;
}
