/** One recipe: its graph, its text with what is wrong marked in place, a form to run it, and its runs. */
import { html } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { Graph } from "../parts/graph.js";
import { RecipeSource } from "../parts/recipe-source.js";
import { RunForm } from "../parts/run-form.js";
import { RunList } from "../parts/run-list.js";
import { Empty, Loaded } from "../parts/states.js";
import { LinkTabs } from "../parts/tabs.js";
import { PageHead } from "../shell/frame.js";
import { hrefWith, query } from "../shell/route.js";

const FRESH = `name: my-recipe
description: What it is for, in one line
inputs:
  - {name: topic, type: string, required: true}
steps:
  - id: look
    agent: explorer
    prompt: "Find out about {{inputs.topic}}."
  - id: write
    agent: default
    posture: read_only
    depends_on: [look]
    prompt: |
      Write a short answer from this:
      {{steps.look.output}}
`;

/** @param {{first: string}} props */
export function Recipe({ first: name }) {
  if (name === "new") return html`<div class="page wide"><${PageHead} title="New recipe" lead="It is checked while you write. Keep it under a name, and it is in .fanfold/workflows." /><${RecipeSource} page=${{ name: "", text: FRESH, digest: null, writable: true, recipe: null }} onSaved=${() => {}} /></div>`;
  return html`<${Known} name=${name} />`;
}

/** @param {{name: string}} props */
function Known({ name }) {
  const view = query.value.get("view") || "graph";
  const found = useResource(`/recipes/${encodeURIComponent(name)}`);
  const tabs = [["graph", "Graph"], ["source", "Source"], ["run", "Run"], ["history", "History"]];
  return html`<div class="page wide">${found.error && !found.data && html`<${PageHead} title="No such recipe" actions=${html`<a class="button" href="/recipes">All recipes</a>`} />`}<${Loaded} of=${found}>${(/** @type {any} */ page) => html`
    <${PageHead} title=${page.name} lead=${page.recipe?.description} actions=${view !== "run" && html`<a class="button primary" href=${hrefWith({ view: "run" })}>Run …</a>`}>
      <span class="quiet">@${page.recipe?.version ?? "?"}</span> <span class="chip">${{ project: "this project", user: "yours", builtin: "built in" }[/** @type {string} */ (page.source)] || page.source}</span>
    </${PageHead}>
    <${LinkTabs} label="Views of the recipe" chosen=${view} tabs=${tabs.map(([id, words]) => ({ id, name: words, href: hrefWith({ view: id === "graph" ? null : id }) }))} />
    ${view === "source" ? html`<${RecipeSource} page=${page} onSaved=${found.reload} />`
      : view === "run" ? html`<${RunForm} page=${page} />`
        : view === "history" ? html`<${History} name=${page.name} />`
          : html`<${Overview} page=${page} />`}`}</${Loaded}></div>`;
}

/** @param {{page: any}} props */
function Overview({ page }) {
  if (!page.graph) return html`<${Empty} title="This recipe cannot be drawn"><p>It has mistakes: <a href=${hrefWith({ view: "source" })}>Source</a> shows them where they are.</p></${Empty}>`;
  const steps = page.recipe?.steps || [];
  return html`<${Graph} label="Graph of the recipe; the list below says the same in words" layout=${page.graph} />
    <section aria-label="Steps in words"><div class="section-head"><h2>Steps</h2></div><div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table>
      <thead><tr><th scope="col">Step</th><th scope="col">Who</th><th scope="col" class="hide-narrow">What is special</th><th scope="col" class="hide-narrow">After</th><th scope="col" class="hide-narrow">May write</th></tr></thead>
      <tbody>${flat(steps, 0).map(({ step, depth }) => html`<tr key=${`${depth} ${step.id}`}><td class="words"><span style=${{ paddingLeft: `${depth * 16}px` }} class="row-link">${step.id}</span><div class="quiet small" style=${{ paddingLeft: `${depth * 16}px` }}>${step.description}</div></td><td>${step.label}</td><td class="hide-narrow">${step.marks.join(", ")}</td><td class="hide-narrow quiet words">${step.depends_on.join(", ")}</td><td class="hide-narrow words">${step.write_set.map((/** @type {string} */ one) => html`<code key=${one}>${one}</code> `)}</td></tr>`)}</tbody>
    </table></div></section>`;
}

/** @param {any[]} steps @param {number} depth @returns {{step: any, depth: number}[]} */
const flat = (steps, depth) => steps.flatMap((step) => [{ step, depth }, ...flat(step.steps, depth + 1)]);

/** @param {{name: string}} props */
function History({ name }) {
  const found = useResource(withQuery("/runs", { recipe: name, limit: 50 }), true);
  return html`<${Loaded} of=${found}>${(/** @type {any} */ data) => data.items.length ? html`<${RunList} runs=${data.items} />` : html`<${Empty} title="It was never run here"><p>Its runs will be listed here, with what they took.</p><a class="button primary" href=${hrefWith({ view: "run" })}>Run it</a></${Empty}>`}</${Loaded}>`;
}
