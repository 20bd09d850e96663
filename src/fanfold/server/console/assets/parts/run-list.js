/** Runs as a short list, with what each is doing. */
import { html } from "../vendor/preact.js";
import { activity } from "../live/stream.js";
import { cost, counted } from "../text/format.js";
import { isOver } from "./status.js";
import { Status } from "./status.js";
import { Ago, Heartbeat, Took, endOf } from "./time.js";

/** @param {{runs: any[]}} props */
export function RunList({ runs }) {
  return html`<ul class="card list runs-list">${runs.map((run) => html`<li key=${run.run_id}>
    <${Status} status=${run.status} />
    <div class="grow beside"><a class="title" href=${`/runs/${run.run_id}`}>${run.recipe}</a> <span class="quiet mono small">${run.run_id}</span>
      <div class="clip quiet small"><${Heartbeat} root=${run.root_run_id} status=${run.status} />${doing(run.run_id) && html`<span class="doing">${doing(run.run_id)}</span>`}</div></div>
    <span class="cell wide quiet small number">${counted(run.usage.agents, "agent")} · ${cost(run.usage)}</span>
    <span class="cell quiet small">${isOver(run.status) ? html`<${Ago} at=${run.ended_at} />` : html`<${Took} from=${run.started_at || run.created_at} to=${endOf(run)} />`}</span>
  </li>`)}</ul>`;
}

/** What its agents do at this moment. @param {string} run */
function doing(run) {
  const found = Object.values(activity.value).filter((one) => one.run_id === run && one.words);
  return found.slice(-2).map((one) => `${one.path}: ${one.words}`).join(" · ");
}
