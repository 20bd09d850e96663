/** One run: its head, the outcome, and a split of a view and the selected step. All of it is in the address. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { Graph } from "../parts/graph.js";
import { Json } from "../parts/code.js";
import { Cost } from "../parts/cost.js";
import { RecipeSteps } from "../parts/recipe-steps.js";
import { RunArtifacts } from "../parts/artifacts.js";
import { Outcome, pathOf } from "../parts/outcome.js";
import { Output } from "../parts/output.js";
import { RunActions } from "../parts/run-actions.js";
import { Split } from "../parts/split.js";
import { Empty, Loaded, Trouble } from "../parts/states.js";
import { Meter, Status, isOver, standing, toneOf, wordOf } from "../parts/status.js";
import { LinkTabs } from "../parts/tabs.js";
import { Ago, Heartbeat, Took, endOf } from "../parts/time.js";
import { Timeline } from "../parts/timeline.js";
import { CostView } from "../parts/cost-view.js";
import { EventsView } from "../parts/events-view.js";
import { StepDrawer } from "../parts/step-panel.js";
import { StepTable } from "../parts/step-table.js";
import { PageHead, useTitle } from "../shell/frame.js";
import { useKeys } from "../shell/keys.js";
import { hrefWith, query, setQuery } from "../shell/route.js";
import { announce } from "../shell/notices.js";
import { useMedia } from "../shell/width.js";
import { amount, counted, money } from "../text/format.js";

const SCRUB_MS = 80;
/** Ends of steps that are counted beside the completed ones. */
const UNCOMPLETED = ["failed", "timed_out", "cancelled", "skipped"];
const VIEWS = [["graph", "Graph"], ["timeline", "Timeline"], ["table", "Table"], ["events", "Events"], ["output", "Output"], ["cost", "Cost"], ["recipe", "Recipe"]];

/** @param {{first: string}} props */
export function Run({ first: id }) {
  const view = query.value.get("view") || "graph";
  const step = query.value.get("step");
  const at = query.value.get("at");
  const [root, setRoot] = useState("");
  const concerns = (/** @type {{run_id: string}} */ event) => !at && (!root || event.run_id === root);
  const open = query.value.get("open") || "";
  const head = useResource(withQuery(`/runs/${id}/head`, { at }), concerns);
  const drawing = useResource(view === "graph" ? withQuery(`/runs/${id}/graph`, { at, open }) : null, concerns);
  // What is looked at comes first; the table, which the keys go by, when it is there.
  const drawn = view !== "graph" || drawing.data !== null || drawing.error !== null;
  const table = useResource(drawn ? withQuery(`/runs/${id}/table`, { at }) : null, concerns);
  useEffect(() => {
    if (head.data) setRoot(head.data.root_run_id);
  }, [head.data?.root_run_id]);
  useTitle(head.data ? `${head.data.recipe} · ${wordOf(head.data.status)}` : "Run");
  useStatusNews(head.data, at);
  const rows = (table.data?.rows || []).map((/** @type {any} */ row) => standing(head.data?.status, row, Boolean(row.asks)));
  const [closed, setClosed] = useState(false);
  const wide = useMedia("(min-width: 1000px)"); // else there is no room for a step beside the view
  const picked = step ?? (wide && !closed && head.data ? relevant(head.data.status, rows) : null);
  const choose = (/** @type {string | null} */ path) => {
    setClosed(path === null);
    setQuery({ step: path });
  };
  const chosen = () => query.peek().get("step") ?? picked; // a second key may come before the first is drawn
  useKeys([
    { key: "j", what: "Next step", act: () => choose(beside(rows, chosen(), 1)) },
    { key: "k", what: "Step before", act: () => choose(beside(rows, chosen(), -1)) },
    { key: "n", what: "Next failure", act: () => choose(nextFailure(rows, chosen())) },
    { key: "g", what: "Graph", act: () => setQuery({ view: null }) },
    { key: "t", what: "Timeline", act: () => setQuery({ view: "timeline" }) },
    { key: "Escape", what: "Close the step", act: () => choose(null) },
  ]);
  if (!head.data) return head.error?.status === 404 ? html`<${NoSuchRun} id=${id} />` : html`<div class="page">${head.error && html`<${PageHead} title="This cannot be shown" actions=${html`<a class="button" href=${`/runs/${encodeURIComponent(id)}`}>The run as it is now</a>`} />`}<${Loaded} of=${head}>${() => null}</${Loaded}></div>`;
  const run = head.data;
  const reload = () => { head.reload(); table.reload(); };
  const views = html`<div class="view-head"><${LinkTabs} label="Views of the run" chosen=${view} tabs=${VIEWS.map(([name, words]) => ({ id: name, name: words, href: hrefWith({ view: name === "graph" ? null : name }) }))} /><${Replay} run=${run} at=${at} /></div>
    <div class="view"><${View} view=${view} id=${id} at=${at} step=${picked} follow=${step !== null} run=${run} table=${table} rows=${rows} drawing=${drawing} concerns=${concerns} choose=${choose} /></div>`;
  return html`<div class="page wide run-page">
    <${Head} run=${run} id=${id} at=${at} step=${step} reload=${reload} />
    <${Trouble} error=${head.error} />
    <${Outcome} run=${run} id=${id} at=${at} rows=${rows} view=${view} step=${picked} choose=${choose} concerns=${concerns} reload=${reload} />
    <${Split} left=${views} right=${picked && html`<${StepDrawer} key=${picked} run=${id} path=${picked} at=${at} concerns=${concerns} caused=${run.error && wide ? pathOf(run) : ""} resting=${run.status === "paused"} until=${at ? run.at : null} onClose=${() => choose(null)} />`} />
  </div>`;
}

/** Which steps are shown first in a run of a status. @type {Record<string, string[]>} */
const RELEVANT = { running: ["running"], waiting: ["waiting"], paused: ["interrupted"], failed: ["failed", "timed_out"], partial: ["failed", "timed_out"], timed_out: ["failed", "timed_out"] };

/** The step to show first: one that runs or was interrupted, or a failure; of a failed group or loop the last step inside. @param {string} status @param {any[]} rows @returns {string | null} */
function relevant(status, rows) {
  if (status === "waiting" && rows.some((row) => row.asks)) return null; // the question is above
  const found = rows.filter((row) => (RELEVANT[status] || []).includes(row.status));
  const step = rows.length === 1 && !isOver(status) ? rows[0] : found.findLast((row) => row.kind === "step");
  const around = step ? null : found.at(-1);
  return step?.path ?? rows.findLast((row) => around && row.kind === "step" && row.path.startsWith(around.path) && row.status !== "skipped")?.path ?? null;
}

/** @param {{id: string}} props */
const NoSuchRun = ({ id }) => html`<div class="page"><${PageHead} title="No such run" /><${Empty} title=${`There is no run ${id} in this project`}>
  <p>It may belong to another project, or was removed by <code>fanfold gc</code>.</p><a class="button primary" href="/runs">All runs</a></${Empty}></div>`;

/** @param {any} props */
function View({ view, id, at, step, follow, run, table, rows, drawing, concerns, choose }) {
  if (view === "timeline") return html`<${TimelineView} id=${id} at=${at} step=${step} run=${run} concerns=${concerns} choose=${choose} />`;
  if (view === "table") return html`<${Loaded} of=${table}>${(/** @type {any} */ data) => html`<${StepTable} rows=${rows} until=${at ? run.at : null} leftOff=${data.left_off} chosen=${step} onChoose=${choose} />`}</${Loaded}>`;
  if (view === "events") return html`<${EventsView} id=${id} reach=${at ? Number(at) : run.reach} onChoose=${choose} />`;
  if (view === "output") return html`<${OutputView} id=${id} at=${at} run=${run} concerns=${concerns} />`;
  if (view === "recipe") return html`<${RecipeView} id=${id} run=${run} />`;
  if (view === "cost") return html`<${Loaded} of=${table}>${(/** @type {any} */ data) => html`<${CostView} rows=${data.rows} run=${run} />`}</${Loaded}>`;
  return html`<${GraphView} run=${run} rows=${rows} step=${step} follow=${follow} drawing=${drawing} choose=${choose} />`;
}

/** @param {any} props */
function GraphView({ run, rows, step, follow, drawing, choose }) {
  const open = query.value.get("open") || "";
  const toggle = (/** @type {any} */ node) => {
    const words = new Set(open.split(",").filter(Boolean));
    words.delete(node.path);
    words.delete(`-${node.path}`);
    words.add(node.open ? `-${node.path}` : node.path);
    setQuery({ open: [...words].join(",") });
    announce(`${node.title} ${node.open ? "closed" : "opened"}`);
  };
  const asking = rows.filter((/** @type {any} */ row) => row.asks).map((/** @type {any} */ row) => row.path).join("\n");
  const drawn = useMemo(() => (drawing.data && run.status === "paused" ? atRest(drawing.data, asking.split("\n")) : drawing.data), [drawing.data, run.status, asking]);
  return html`<${Loaded} of=${{ ...drawing, data: drawn }}>${(/** @type {any} */ layout) => html`<${Graph} label="Graph of the run; the table has the same steps" layout=${layout} chosen=${step} follow=${follow} onChoose=${(/** @type {any} */ node) => choose(node.path)} onToggle=${toggle} />`}</${Loaded}>`;
}

/** @param {any} layout @param {string[]} asking */
function atRest(layout, asking) {
  return { ...layout, nodes: layout.nodes.map((/** @type {any} */ node) => standing("paused", node, asking.includes(node.path))) };
}

/** @param {any} props */
function TimelineView({ id, at, step, run, concerns, choose }) {
  const found = useResource(withQuery(`/runs/${id}/timeline`, { at }), concerns);
  return html`<${Loaded} of=${found}>${(/** @type {any} */ line) => html`<${Timeline} line=${{ ...line, rows: line.rows.map((/** @type {any} */ row) => standing(run.status, row, row.spans.at(-1)?.status !== "interrupted")) }} live=${!at && !isOver(run.status)} chosen=${step} onChoose=${choose} />`}</${Loaded}>`;
}

/** The recipe and inputs as the run recorded them. @param {any} props */
function RecipeView({ id, run }) {
  const found = useResource(`/runs/${id}/recipe`);
  return html`<${Loaded} of=${found}>${(/** @type {any} */ data) => html`<div class="form">
    <p class="quiet prose">${run.recipe}@${run.version} as it was when this run was created.${data.in_library && html` <a href=${`/recipes/${encodeURIComponent(run.recipe)}`}>Open the recipe as it is now</a>`}</p>
    ${Object.keys(data.inputs).length > 0 && html`<section><div class="section-head"><h2>Inputs</h2></div><${Json} value=${data.inputs} label="Copy the inputs" /></section>`}
    <${RecipeSteps} steps=${data.recipe.steps} /></div>`}</${Loaded}>`;
}

/** @param {any} props */
function OutputView({ id, at, run, concerns }) {
  const found = useResource(withQuery(`/runs/${id}/output`, { at }), concerns);
  const empty = isOver(run.status) ? "This run has no output." : "The run has no output yet. Its steps have one as soon as they end.";
  return html`<${Loaded} of=${found}>${(/** @type {any} */ data) => html`<div class="card padded"><${Output} value=${data.output} empty=${empty} /></div>
    ${data.changes?.length ? html`<section class="card padded view"><h2 class="gap-below">Changed files</h2><ul class="changes">${data.changes.map((/** @type {any} */ change) => html`<li key=${`${change.path} ${change.step}`}><span class="chip">${change.kind}</span> <code>${change.path}</code> <span class="quiet small">${change.step}, ${change.state}</span></li>`)}</ul></section>` : null}
    <${RunArtifacts} id=${id} at=${at} concerns=${concerns} />`}</${Loaded}>`;
}

/** @param {any} props */
function Head({ run, id, at, step, reload }) {
  const all = Object.values(run.counts).reduce((/** @type {number} */ sum, n) => sum + Number(n), 0);
  return html`<div class="run-head">
    ${run.breadcrumbs.length > 0 && html`<nav aria-label="Runs above"><ol class="crumbs">${run.breadcrumbs.map((/** @type {any} */ crumb) => html`<li key=${crumb.run_id}><a href=${`/runs/${crumb.run_id}?step=${encodeURIComponent(crumb.path)}`}>${crumb.recipe}</a></li>`)}<li>${run.recipe}</li></ol></nav>`}
    <div class="top">
      <h1 tabindex="-1">${run.recipe}<span class="quiet">@${run.version}</span></h1>
      <${Status} status=${run.status} pill />
      <div class="actions"><${RunActions} run=${run} step=${step} at=${at} reload=${reload} /></div>
    </div>
    <div class="run-facts">
      <span><${Meter} counts=${run.counts} resting=${run.status === "paused"} /></span>
      <span><b>${amount(run.counts.completed || 0)}</b> of ${counted(all, "step")} completed${run.growing ? ", more may come" : ""}</span>
      ${UNCOMPLETED.filter((word) => run.counts[word]).map((word) => html`<span key=${word} class=${`of-tone tone-${toneOf(word)}`}><b>${amount(run.counts[word])}</b> ${wordOf(word)}</span>`)}
      <span><b><${Took} from=${run.started_at || run.created_at} to=${at ? run.at : endOf(run)} /></b></span>
      <span><b><${Cost} usage=${run.usage} named /></b>${run.cap.usd !== null ? ` of ${money(run.cap.usd)}` : ""}</span>
      <span><b>${amount(run.usage.input_tokens + run.usage.output_tokens)}</b>${run.cap.tokens !== null ? ` of ${amount(run.cap.tokens)}` : ""} tokens</span>
      <span>${counted(run.usage.agents, "agent")}</span>
      ${!at && html`<${Heartbeat} root=${run.root_run_id} status=${run.status} />`}
      <span class="quiet">started <${Ago} at=${run.created_at} /></span>
      <span class="quiet mono">${run.run_id}</span>
      ${run.forked_from && html`<span>fork of <a href=${`/runs/${run.forked_from}`} class="mono">${run.forked_from}</a> · <a href=${`/compare/${run.forked_from}/${run.run_id}`}>compare</a></span>`}
    </div>
  </div>`;
}

/** The run after any of its events: a slider over the log. @param {{run: any, at: string | null}} props */
function Replay({ run, at }) {
  const [moved, setMoved] = useState(/** @type {number | null} */ (null));
  const timer = useRef(0);
  const last = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  // A browser allows only so many changes of the address per second, and dragging makes more.
  const move = (/** @type {number} */ to) => {
    setMoved((last.current = to));
    timer.current ||= setTimeout(() => {
      timer.current = 0;
      setQuery({ at: last.current >= run.reach ? null : last.current });
      setMoved(null);
    }, SCRUB_MS);
  };
  const value = moved ?? (at ? Number(at) : run.reach);
  const back = at !== null && Number(at) < run.reach;
  return html`<div class=${`scrub ${back ? "back" : ""}`}>
    <label for="scrub">Replay</label>
    <input id="scrub" type="range" min="1" max=${run.reach} value=${value} aria-valuetext=${`event ${value} of ${run.reach}`}
      onInput=${(/** @type {any} */ event) => move(Number(event.target.value))} />
    ${back && html`<output class="number" for="scrub">${amount(value)} of ${amount(run.reach)}</output><button class="button small" onClick=${() => setQuery({ at: null })}>Back to now</button>`}
  </div>`;
}

/** Announces a change of status once. @param {any} run @param {string | null} at */
function useStatusNews(run, at) {
  const [before, setBefore] = useState("");
  useEffect(() => {
    if (!run || at) return;
    if (before && before !== run.status) announce(`${run.recipe} is ${wordOf(run.status)}`);
    setBefore(run.status);
  }, [run?.status]);
}

/** @param {any[]} rows @param {string | null} step @param {number} by */
function beside(rows, step, by) {
  if (!rows.length) return step; // not there yet: what is open stays open
  const at = rows.findIndex((row) => row.path === step);
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
  announce(`${rows[next].name}, ${wordOf(rows[next].status)}`);
  return rows[next].path;
}

/** @param {any[]} rows @param {string | null} step */
function nextFailure(rows, step) {
  if (!rows.length) return step;
  const at = rows.findIndex((row) => row.path === step);
  const order = [...rows.slice(at + 1), ...rows.slice(0, at + 1)];
  const found = order.find((row) => ["failed", "timed_out"].includes(row.status));
  announce(found ? `${found.name} ${wordOf(found.status)}` : "No step failed");
  return found ? found.path : step;
}
