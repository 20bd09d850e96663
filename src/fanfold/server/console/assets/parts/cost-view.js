/** What a run cost: by step, and by who did the work. */
import { html } from "../vendor/preact.js";
import { amount, cost, counted, money } from "../text/format.js";

/** @param {{rows: any[], run: any}} props */
export function CostView({ rows, run }) {
  const spent = rows.filter((row) => row.kind === "step" && row.input_tokens !== undefined);
  const groups = grouped(spent, (row) => row.who || row.type);
  const steps = grouped(spent, (row) => row.path.replace(/\[\d+\]|#\d+/g, "*"));
  return html`<div class="cost">
    <dl class="figures">
      <div><dt>Cost</dt><dd>${cost(run.usage)} ${run.cap.usd !== null && html`<small>of ${money(run.cap.usd)}</small>`}</dd></div>
      <div><dt>Tokens in</dt><dd>${amount(run.usage.input_tokens)}</dd></div>
      <div><dt>Tokens out</dt><dd>${amount(run.usage.output_tokens)}</dd></div>
      <div><dt>Agents</dt><dd>${amount(run.usage.agents)}</dd></div>
    </dl>
    ${spent.length ? html`<${Share} title="By agent" rows=${groups} /><${Share} title="By step" rows=${steps} />` : html`<p class="card padded quiet">No step has spent anything.</p>`}
  </div>`;
}

/** @param {any[]} rows @param {(row: any) => string} by */
function grouped(rows, by) {
  /** @type {Map<string, {name: string, steps: number, input: number, output: number, usd: number | null}>} */
  const found = new Map();
  for (const row of rows) {
    const name = by(row);
    const one = found.get(name) || { name, steps: 0, input: 0, output: 0, usd: 0 };
    one.steps += 1;
    one.input += row.input_tokens;
    one.output += row.output_tokens;
    one.usd = one.usd === null || row.cost_usd === undefined || row.cost_usd === null ? null : one.usd + row.cost_usd;
    found.set(name, one);
  }
  return [...found.values()].sort((a, b) => b.input + b.output - a.input - a.output);
}

/** @param {{title: string, rows: any[]}} props */
function Share({ title, rows }) {
  const most = Math.max(1, ...rows.map((row) => row.input + row.output));
  return html`<section aria-label=${title}><div class="section-head"><h2>${title}</h2></div><div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table>
    <thead><tr><th scope="col">${title === "By agent" ? "Agent" : "Step"}</th><th scope="col" class="number">Sessions</th><th scope="col" class="number hide-narrow">In</th><th scope="col" class="number hide-narrow">Out</th><th scope="col">Share</th><th scope="col" class="number">Cost</th></tr></thead>
    <tbody>${rows.slice(0, 200).map((row) => html`<tr key=${row.name}><td>${row.name}</td><td class="number">${amount(row.steps)}</td><td class="number hide-narrow">${amount(row.input)}</td><td class="number hide-narrow">${amount(row.output)}</td>
      <td><span class="meter" role="img" aria-label=${counted(row.input + row.output, "token")}><i class="tone-running" style=${{ width: `${((row.input + row.output) / most) * 100}%` }}></i></span></td><td class="number">${money(row.usd)}</td></tr>`)}</tbody>
  </table></div></section>`;
}
