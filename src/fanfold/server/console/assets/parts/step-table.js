/** The steps of a run as a table: the same as the graph, for eyes, keys and readers of screens. */
import { html } from "../vendor/preact.js";
import { amount, briefName, money } from "../text/format.js";
import { Status, isOver } from "./status.js";
import { Took } from "./time.js";
import { VirtualTable } from "./virtual-table.js";

const COLUMNS = [
  { name: "Step", kind: "named" }, { name: "Status" }, { name: "Agent", narrow: true }, { name: "Time", number: true }, { name: "Attempts", number: true, narrow: true },
  { name: "Tokens", number: true, narrow: true }, { name: "Cost", number: true, narrow: true }, { name: "Note", kind: "text", narrow: true },
];

/** `until`: the time of the replay. @param {{rows: any[], until: string | null, leftOff: number, chosen: string | null, onChoose: (path: string) => void}} props */
export function StepTable({ rows, until, leftOff, chosen, onChoose }) {
  return html`<${VirtualTable} label="Steps" rows=${rows} keyOf=${(/** @type {any} */ row) => row.path} chosen=${chosen} columns=${COLUMNS}
    render=${(/** @type {any} */ row) => [
      html`<span class="indent" style=${{ paddingLeft: `${row.depth * 16}px` }}><button class="as-link row-link" title=${row.path} aria-label=${row.name} onClick=${() => onChoose(row.path)}>${briefName(row.name)}</button>${row.child_run_id ? html` <a class="chip" href=${`/runs/${row.child_run_id}`}>run</a>` : ""}</span>`,
      html`<${Status} status=${row.status} />`, row.who || row.type,
      row.started_at ? html`<${Took} from=${row.started_at} to=${isOver(row.status) ? row.ended_at : row.stopped_at ?? until} />` : "",
      row.attempts > 1 ? row.attempts : "", row.input_tokens === undefined ? "" : amount(row.input_tokens + row.output_tokens),
      row.input_tokens === undefined ? "" : money(row.cost_usd ?? null), html`<span title=${row.note || ""}>${row.note || ""}</span>`,
    ]} />
    ${leftOff ? html`<p class="quiet small">${amount(leftOff)} more steps are not shown.</p>` : null}`;
}
