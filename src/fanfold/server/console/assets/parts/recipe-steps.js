/** The steps of a recipe as a table: the twin of its graph in words. */
import { html } from "../vendor/preact.js";

/** @param {{steps: any[]}} props */
export const RecipeSteps = ({ steps }) => html`<section aria-label="Steps"><div class="section-head"><h2>Steps</h2></div><div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table>
  <thead><tr><th scope="col">Step</th><th scope="col">Agent</th><th scope="col" class="hide-narrow">Flags</th><th scope="col" class="hide-narrow">After</th><th scope="col" class="hide-narrow">May write</th></tr></thead>
  <tbody>${flat(steps, 0).map(({ step, depth }) => html`<tr key=${`${depth} ${step.id}`}><td class="words"><span style=${{ paddingLeft: `${depth * 16}px` }} class="row-link">${step.id}</span><div class="quiet small" style=${{ paddingLeft: `${depth * 16}px` }}>${step.description}</div></td><td>${step.label}</td><td class="hide-narrow">${step.marks.join(", ")}</td><td class="hide-narrow quiet words">${step.depends_on.join(", ")}</td><td class="hide-narrow words">${step.write_set.map((/** @type {string} */ one) => html`<code key=${one}>${one}</code> `)}</td></tr>`)}</tbody>
</table></div></section>`;

/** @param {any[]} steps @param {number} depth @returns {{step: any, depth: number}[]} */
const flat = (steps, depth) => steps.flatMap((step) => [{ step, depth }, ...flat(step.steps, depth + 1)]);
