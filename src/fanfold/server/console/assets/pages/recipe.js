/** One recipe: its graph, its text with what is wrong marked in place, a form to run it, and its runs. */
import { html } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { Graph } from "../parts/graph.js";
import { RecipeSource } from "../parts/recipe-source.js";
import { RecipeSteps } from "../parts/recipe-steps.js";
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
  if (name === "new") return html`<div class="page wide"><${PageHead} title="New recipe" lead="The text is checked while you type. It is saved in .fanfold/workflows." /><${RecipeSource} page=${{ name: "", text: FRESH, digest: null, writable: true, recipe: null }} onSaved=${() => {}} /></div>`;
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
  if (!page.graph) return html`<${Empty} title="This recipe cannot be drawn"><p>It has errors: <a href=${hrefWith({ view: "source" })}>Source</a> shows them in place.</p></${Empty}>`;
  const steps = page.recipe?.steps || [];
  return html`<${Graph} label="Graph of the recipe; the table below has the same steps" layout=${page.graph} />
    <${RecipeSteps} steps=${steps} />`;
}

/** @param {{name: string}} props */
function History({ name }) {
  const found = useResource(withQuery("/runs", { recipe: name, limit: 50 }), true);
  return html`<${Loaded} of=${found}>${(/** @type {any} */ data) => data.items.length ? html`<${RunList} runs=${data.items} inputs />` : html`<${Empty} title="No runs yet"><p>Runs of this recipe are listed here with time and cost.</p><a class="button primary" href=${hrefWith({ view: "run" })}>Run it</a></${Empty}>`}</${Loaded}>`;
}
