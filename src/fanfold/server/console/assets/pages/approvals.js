/** Approvals: everything that waits for a person, across all runs. */
import { html } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { AnswerForm } from "../parts/answer-form.js";
import { Empty, Loaded } from "../parts/states.js";
import { Ago } from "../parts/time.js";
import { PageHead } from "../shell/frame.js";

export function Approvals() {
  const found = useResource("/approvals", true);
  return html`<div class="page">
    <${PageHead} title="Approvals" />
    <${Loaded} of=${found}>${(/** @type {any} */ data) => data.items.length ? data.items.map((/** @type {any} */ one) => html`<article class="card padded" key=${`${one.run_id} ${one.step} ${one.seen}`} aria-label=${`${one.recipe}: ${one.step}`}>
      <div class="section-head"><h2><a href=${`/runs/${one.run_id}?step=${encodeURIComponent(one.step)}`}>${one.recipe} / ${one.step}</a></h2><span class="quiet mono small">${one.run_id}</span><span class="more quiet"><${Ago} at=${one.since} /></span></div>
      <${AnswerForm} run=${one.run_id} path=${one.step} asked=${one} onAnswered=${found.reload} />
    </article>`) : html`<${Empty} title="Nothing waits for you"><p>A step <code>approve: "Release it?"</code> in a recipe waits until you answer, here or with <code>fanfold approve</code>. You see what runs next and what it may write.</p></${Empty}>`}</${Loaded}>
  </div>`;
}
