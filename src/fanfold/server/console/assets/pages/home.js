/** Home: open items, running and finished runs, spending. */
import { html, useState } from "../vendor/preact.js";
import { useResource } from "../live/resource.js";
import { DemoCards } from "../parts/demo-cards.js";
import { RunList } from "../parts/run-list.js";
import { Loaded } from "../parts/states.js";
import { Sign, toneOf } from "../parts/status.js";
import { Ago } from "../parts/time.js";
import { PageHead } from "../shell/frame.js";
import { amount, counted, money } from "../text/format.js";
import { plain } from "../text/markdown.js";

/** The sign of each kind of open item. @type {Record<string, string>} */
const SIGNS = { approval: "waiting", question: "waiting", delivery: "waiting", stuck: "stuck", paused: "paused", delayed: "paused", failed: "failed" };

export function Home() {
  const home = useResource("/home", true);
  return html`<div class="page"><${Loaded} of=${home}>${(/** @type {any} */ data) => (data.runs === 0 ? html`<${FirstSteps} />` : html`<${Overview} data=${data} />`)}</${Loaded}></div>`;
}

const MOST_NEEDS = 5;
const DISMISSED = "fanfold-dismissed";

/** @param {{data: any}} props */
function Overview({ data }) {
  return html`
    <${PageHead} title="Home" actions=${html`<a class="button primary" href="/recipes">Run a recipe</a>`} />
    <${Needs} needs=${data.needs} />
    <section aria-labelledby="running">
      <div class="section-head"><h2 id="running">Running now</h2><a class="more" href="/runs">All runs</a></div>
      ${data.running.length ? html`<${RunList} runs=${data.running} />` : html`<p class="card padded quiet">No run is active.</p>`}
    </section>
    ${data.finished.length > 0 && html`<section aria-labelledby="finished"><div class="section-head"><h2 id="finished">Recently finished</h2></div><${RunList} runs=${data.finished.map((/** @type {any} */ one) => ({ ...one.run, answer: one.answer }))} /></section>`}
    <section aria-labelledby="spend">
      <div class="section-head"><h2 id="spend">Spend</h2></div>
      <dl class="figures">
        <${Figure} name="Today" spent=${data.spend.today} /><${Figure} name="Last 7 days" spent=${data.spend.week} />
        <div><dt>Per day</dt><dd><${Days} days=${data.spend.days} /></dd></div>
        <div><dt>Runs</dt><dd>${amount(data.runs)}</dd></div>
      </dl>
    </section>`;
}

/** @param {any} need */
const isQuestion = (need) => ["approval", "question", "delivery"].includes(need.kind);

/** Questions first, then the rest; each by recipe, newest first. Failures and pauses can be dismissed in this browser; questions cannot. @param {{needs: any[]}} props */
function Needs({ needs }) {
  const [gone, setGone] = useState(dismissed);
  const [all, setAll] = useState(false);
  const open = needs.filter((need) => !gone.includes(idOf(need))).sort((a, b) => Number(isQuestion(b)) - Number(isQuestion(a)) || String(b.since).localeCompare(String(a.since)));
  const dismiss = (/** @type {any} */ need) => {
    const kept = [...gone, idOf(need)].filter((id) => needs.some((one) => idOf(one) === id));
    setGone(kept);
    try {
      localStorage.setItem(DISMISSED, JSON.stringify(kept));
    } catch {
      // Without storage it comes back with the page.
    }
  };
  const shown = all ? open : open.slice(0, MOST_NEEDS);
  const groupOf = (/** @type {any} */ need) => `${isQuestion(need)} ${need.recipe}`;
  const groups = [...new Set(shown.map(groupOf))];
  return html`<section aria-labelledby="needs">
    <div class="section-head"><h2 id="needs">Needs you</h2>${open.length > MOST_NEEDS && html`<button class="as-link more" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show all ${open.length}`}</button>`}</div>
    ${open.length ? html`<ul class="card list">${groups.map((group) => shown.filter((need) => groupOf(need) === group).map((need) => html`<${Need} key=${idOf(need)} need=${need} onDismiss=${() => dismiss(need)} />`))}</ul>`
      : html`<p class="card padded quiet">Nothing waits for you.</p>`}
  </section>`;
}

/** @param {any} need */
const idOf = (need) => `${need.run_id} ${need.step} ${need.kind}`;

/** @returns {string[]} */
function dismissed() {
  try {
    return JSON.parse(localStorage.getItem(DISMISSED) || "[]");
  } catch {
    return [];
  }
}

/** @param {{need: any, onDismiss: () => void}} props */
function Need({ need, onDismiss }) {
  const sign = SIGNS[need.kind] || "waiting";
  const answers = isQuestion(need);
  const href = `/runs/${need.run_id}${need.step && !answers ? `?step=${encodeURIComponent(need.step)}` : ""}`;
  return html`<li>
    <span class=${`status tone-${toneOf(sign)}`}><${Sign} status=${sign} /></span>
    <div class="grow"><a class="title" href=${href}>${need.recipe}${need.step ? ` / ${need.step}` : ""}</a> <span class="quiet">${need.state}</span>
      <div class="two-lines quiet">${plain(need.message)}</div></div>
    <span class="quiet small"><${Ago} at=${need.since} /></span>
    <a class="button small" href=${href} aria-label=${`${answers ? "Answer" : "View"} ${need.recipe} ${need.step || ""}`}>${answers ? "Answer" : "View"}</a>
    ${!answers && html`<button class="button plain small" onClick=${onDismiss} aria-label=${`Dismiss ${need.recipe} ${need.step || ""}`} title="Dismiss">✕</button>`}
  </li>`;
}

/** Spending of the last seven days as bars. @param {{days: any[]}} props */
function Days({ days }) {
  const most = Math.max(...days.map((one) => one.spend.cost_usd), 0.000001);
  return html`<span class="days" role="img" aria-label=${days.map((one) => `${one.day}: ${money(one.spend.cost_usd)}`).join(", ")}>
    ${days.map((one) => html`<i key=${one.day} style=${{ height: `${Math.max(4, (one.spend.cost_usd / most) * 100)}%` }} title=${`${one.day}: ${money(one.spend.cost_usd)}, ${counted(one.spend.runs, "run")}`}></i>`)}</span>`;
}

/** @param {{name: string, spent: any}} props */
function Figure({ name, spent }) {
  const known = spent.unpriced === 0 || spent.cost_usd > 0;
  const more = known && spent.unpriced > 0 ? `, ${counted(spent.unpriced, "run")} of unknown price` : "";
  return html`<div><dt>${name}</dt><dd>${money(known ? spent.cost_usd : null)} <small>${counted(spent.input_tokens + spent.output_tokens, "token")}${more}</small></dd></div>`;
}

function FirstSteps() {
  return html`
    <${PageHead} title="Welcome to Fanfold" lead="Fanfold gives one job to a team of agents, prevents conflicts between them, and returns one answer. This project has no runs yet: start with one of these." />
    <section aria-labelledby="begin">
      <div class="section-head"><h2 id="begin">Three recipes that run without a key</h2></div>
      <p class="quiet gap-below">Their agents are <strong>scripted</strong>: steps, scheduling, log and costs are real; the texts were prepared. Only the third writes files, into <code>fanfold-demo</code>.</p>
      <${DemoCards} />
    </section>
    <section class="card padded" aria-labelledby="yours">
      <h2 id="yours" class="gap-below">Next: your own recipe</h2>
      <dl class="pairs">
        <dt>A recipe</dt><dd>is a YAML file in <code>.fanfold/workflows</code>: <a href="/recipes">open a built-in one</a>, edit it, and save it under a new name.</dd>
        <dt>A model</dt><dd>is the one whose key is set, or a small local one: <a href="/system">System</a> shows what is configured.</dd>
        <dt>The terminal</dt><dd>can do the same: <code>fanfold run research-and-brief -i topic="sea ice"</code>. Runs started there appear here.</dd>
      </dl>
    </section>`;
}
