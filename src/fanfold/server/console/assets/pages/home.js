/** Home: what needs you, what runs now, what it costs. */
import { html } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { DemoCards } from "../parts/demo-cards.js";
import { RunList } from "../parts/run-list.js";
import { Loaded } from "../parts/states.js";
import { Sign, isOver, toneOf } from "../parts/status.js";
import { Ago } from "../parts/time.js";
import { PageHead } from "../shell/frame.js";
import { amount, counted, money } from "../text/format.js";
import { plain } from "../text/markdown.js";

/** @type {Record<string, {word: string, status: string}>} */
const NEEDS = {
  approval: { word: "wants your approval", status: "waiting" },
  question: { word: "asks you", status: "waiting" },
  delivery: { word: "has something to deliver", status: "waiting" },
  stuck: { word: "is stuck", status: "stuck" },
  paused: { word: "is paused until you resume it", status: "paused" },
  failed: { word: "failed", status: "failed" },
};

export function Home() {
  const home = useResource("/home", true);
  return html`<div class="page"><${Loaded} of=${home}>${(/** @type {any} */ data) => (data.runs === 0 ? html`<${FirstSteps} />` : html`<${Overview} data=${data} />`)}</${Loaded}></div>`;
}

/** @param {{data: any}} props */
function Overview({ data }) {
  const lately = useResource("/runs?limit=6", true);
  const ended = (lately.data?.items || []).filter((/** @type {any} */ run) => isOver(run.status));
  return html`
    <${PageHead} title="Home" actions=${html`<a class="button primary" href="/recipes">Run a recipe</a>`} />
    <section aria-labelledby="needs">
      <div class="section-head"><h2 id="needs">Needs you</h2></div>
      ${data.needs.length ? html`<ul class="card list">${data.needs.map((/** @type {any} */ need) => html`<${Need} key=${`${need.run_id} ${need.step} ${need.kind}`} need=${need} />`)}</ul>`
        : html`<p class="card padded quiet">Nothing waits for you.</p>`}
    </section>
    <section aria-labelledby="running">
      <div class="section-head"><h2 id="running">Running now</h2><a class="more" href="/runs">All runs</a></div>
      ${data.running.length ? html`<${RunList} runs=${data.running} />` : html`<p class="card padded quiet">Nothing runs at the moment.</p>`}
    </section>
    ${ended.length > 0 && html`<section aria-labelledby="lately"><div class="section-head"><h2 id="lately">Lately</h2></div><${RunList} runs=${ended} /></section>`}
    <section aria-labelledby="spend">
      <div class="section-head"><h2 id="spend">Spend</h2></div>
      <dl class="figures">
        <${Figure} name="Today" spent=${data.spend.today} /><${Figure} name="This week" spent=${data.spend.week} />
        <div><dt>Runs</dt><dd>${amount(data.runs)}</dd></div><div><dt>Recipes</dt><dd>${amount(data.recipes)}</dd></div>
      </dl>
    </section>`;
}

/** @param {{need: any}} props */
function Need({ need }) {
  const kind = NEEDS[need.kind] || { word: need.kind, status: "waiting" };
  const answers = ["approval", "question", "delivery"].includes(need.kind);
  const href = answers ? "/approvals" : `/runs/${need.run_id}${need.step ? `?step=${encodeURIComponent(need.step)}` : ""}`;
  return html`<li>
    <span class=${`status tone-${toneOf(kind.status)}`}><${Sign} status=${kind.status} /></span>
    <div class="grow"><a class="title" href=${href}>${need.recipe}${need.step ? ` / ${need.step}` : ""}</a> <span class="quiet">${kind.word}</span>
      <div class="clip quiet">${plain(need.message)}</div></div>
    <span class="quiet small"><${Ago} at=${need.since} /></span>
    <a class="button small" href=${href} aria-label=${`${answers ? "Answer" : "Look at"} ${need.recipe} ${need.step || ""}`}>${answers ? "Answer" : "Look"}</a>
  </li>`;
}

/** @param {{name: string, spent: any}} props */
function Figure({ name, spent }) {
  const known = spent.unpriced === 0 || spent.cost_usd > 0;
  const more = known && spent.unpriced > 0 ? `, ${counted(spent.unpriced, "run")} of unknown price` : "";
  return html`<div><dt>${name}</dt><dd>${money(known ? spent.cost_usd : null)} <small>${counted(spent.input_tokens + spent.output_tokens, "token")}${more}</small></dd></div>`;
}

function FirstSteps() {
  return html`
    <${PageHead} title="Welcome to Fanfold" lead="Fanfold hands one job to a team of agents, keeps them out of each other's way, and folds one answer back. This project has no runs yet: begin with one of these." />
    <section aria-labelledby="begin">
      <div class="section-head"><h2 id="begin">Three runs that need no key</h2></div>
      <p class="quiet gap-below">Their agents are <strong>scripted</strong>: every step is really scheduled, recorded and shown, but the words were written beforehand. None of them changes a file.</p>
      <${DemoCards} />
    </section>
    <section class="card padded" aria-labelledby="yours">
      <h2 id="yours" class="gap-below">Then your own</h2>
      <dl class="pairs">
        <dt>A recipe</dt><dd>is a YAML file in <code>.fanfold/workflows</code>: <a href="/recipes">look at the built-in ones</a>, change one, and keep it under a name of yours.</dd>
        <dt>A model</dt><dd>is whichever key is set, or a small one on this machine: <a href="/system">System</a> says what is configured.</dd>
        <dt>The terminal</dt><dd>does all of this too: <code>fanfold run research-and-brief -i topic="sea ice"</code>. Runs started there appear here.</dd>
      </dl>
    </section>`;
}
