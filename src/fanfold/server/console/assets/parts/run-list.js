/** Runs as a short list, each with its answer or what its agents do now. */
import { html } from "../vendor/preact.js";
import { activity } from "../live/stream.js";
import { counted } from "../text/format.js";
import { plain } from "../text/markdown.js";
import { Cost } from "./cost.js";
import { Status, isOver } from "./status.js";
import { Ago, Heartbeat, Took, endOf } from "./time.js";

/** `inputs`: also show with which inputs each was started. @param {{runs: any[], inputs?: boolean}} props */
export function RunList({ runs, inputs }) {
  return html`<ul class="card list runs-list">${runs.map((run) => html`<li key=${run.run_id}>
    <${Status} status=${run.status} />
    <div class="grow beside"><a class="title" href=${`/runs/${run.run_id}`}>${run.recipe}</a> ${run.scripted ? html`<span class="chip" title="The agents of this run are scripted">scripted</span> ` : ""}<span class="quiet mono small">${run.run_id}</span>${inputs && run.inputs && html` <span class="quiet small">${run.inputs}</span>`}
      <div class="clip quiet small"><${Heartbeat} root=${run.root_run_id} status=${run.status} />${run.answer || run.error ? plain(run.answer || run.error.message) : doing(run.run_id) && html`<span class="doing">${doing(run.run_id)}</span>`}</div></div>
    <span class="cell wide quiet small number">${counted(run.usage.agents, "agent")} · <${Cost} usage=${run.usage} named /></span>
    <span class="cell quiet small">${isOver(run.status) ? html`<${Ago} at=${run.ended_at} />` : html`<${Took} from=${run.started_at || run.created_at} to=${endOf(run)} />`}</span>
  </li>`)}</ul>`;
}

/** What the agent does that was active last, and how many there are. @param {string} run */
function doing(run) {
  const found = Object.values(activity.value).filter((one) => one.run_id === run && one.words);
  const latest = found.at(-1); // activities are in order of their last change
  return latest ? `${found.length > 1 ? `${counted(found.length, "agent")} · ` : ""}${latest.path}: ${plain(latest.words)}` : "";
}
