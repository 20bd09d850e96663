/** Three recipes for a first run. */
import { html, useState } from "../vendor/preact.js";
import { DEMOS } from "../demos.js";
import { post } from "../live/api.js";
import { go } from "../shell/route.js";
import { notifyError } from "../shell/notices.js";

export function DemoCards() {
  const [busy, setBusy] = useState("");
  const run = async (/** @type {typeof DEMOS[number]} */ demo) => {
    setBusy(demo.recipe);
    try {
      const { run_id } = await post("/runs", { recipe: demo.recipe, inputs: demo.inputs, script: demo.script, yes: true });
      go(`/runs/${run_id}?intro=1`);
    } catch (error) {
      notifyError(error);
      setBusy("");
    }
  };
  return html`<ul class="cards">
    ${DEMOS.map((demo) => html`<li key=${demo.recipe}>
      <h3>${demo.title}</h3>
      <p class="quiet">${demo.about} <a href=${`/recipes/${demo.recipe}`}>View the recipe</a></p>
      <div class="foot"><button class="button primary small" disabled=${busy !== ""} onClick=${() => run(demo)} aria-label=${`Run ${demo.title}, scripted`}>${busy === demo.recipe ? "Starting …" : "Run, scripted"}</button></div>
    </li>`)}
  </ul>`;
}
