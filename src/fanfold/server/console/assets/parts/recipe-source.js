/** A recipe's text, checked while it is written: what is wrong is marked where it is, and a dry run stands beside it. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { post, put } from "../live/api.js";
import { go } from "../shell/route.js";
import { notify, notifyError } from "../shell/notices.js";
import { writeJson } from "../text/json.js";
import { paintLine } from "../text/yaml.js";
import { Price } from "./cost.js";
import { Graph } from "./graph.js";
import { Trouble } from "./states.js";

const WAIT_MS = 350;

/** @param {{page: any, onSaved: () => void}} props */
export function RecipeSource({ page, onSaved }) {
  const [text, setText] = useState(page.text);
  // What the text was made from: when the recipe was changed elsewhere meanwhile, keeping it is refused.
  const [base, setBase] = useState({ text: page.text, digest: page.digest });
  useEffect(() => {
    if (text === base.text) setText(page.text);
    if (text === base.text || text === page.text) setBase({ text: page.text, digest: page.digest });
  }, [page.digest]);
  const [report, setReport] = useState(/** @type {any} */ (page.check ? { ...page.check, graph: page.graph } : null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const changed = text !== base.text || !page.name;
  const own = /^name:\s*["']?([a-z0-9][a-z0-9_-]*)/m.exec(text)?.[1] || "";
  const name = page.writable && page.name ? page.name : own;
  useEffect(() => {
    if (!changed && page.check) return setReport({ ...page.check, graph: page.graph });
    return afterAWhile(() => post("/check", { text, ...(name && { name }) }), (found) => { setReport(found); setError(null); }, setError);
  }, [text]);
  const keep = async () => {
    setBusy(true);
    try {
      const fresh = !page.name || name !== page.name;
      await put(`/recipes/${encodeURIComponent(name)}`, { text, seen: fresh ? null : base.digest });
      notify(`${name} is saved.`);
      if (fresh) go(`/recipes/${name}?view=source`);
      else onSaved();
    } catch (failure) {
      notifyError(failure);
    }
    setBusy(false);
  };
  const problems = report?.diagnostics || [];
  // What a recipe calls may have mistakes too; those stand in another file.
  const elsewhere = (/** @type {any} */ one) => Boolean(one.file && page.name && !one.file.endsWith(`/${page.name}.yaml`) && !one.file.endsWith("recipe.yaml") && one.file !== page.file && one.file !== page.name);
  const bad = problems.some((/** @type {any} */ one) => one.severity === "error");
  const clash = !page.writable && name === page.name;
  return html`<div class="two">
    <div class="form">
      <${Editor} text=${text} onInput=${setText} problems=${problems.filter((/** @type {any} */ one) => !elsewhere(one))} />
      <div class="actions">
        <button class="button primary" disabled=${!changed || bad || busy || !name || clash} onClick=${keep}>${page.writable && page.name ? "Save" : `Save as ${name || "…"}`}</button>
        ${changed && page.name && html`<button class="button" onClick=${() => { setText(page.text); setBase({ text: page.text, digest: page.digest }); }}>Discard changes</button>`}
        ${!page.writable && html`<span class="quiet small">This recipe is built in. Change its <code>name:</code> to save it in this project.</span>`}
      </div>
    </div>
    <div class="form">
      <${Trouble} error=${error} />
      ${problems.length ? html`<ul class="card list" aria-label="Problems">${problems.map((/** @type {any} */ one, /** @type {number} */ i) => html`<li key=${i} class=${`tone-${one.severity === "error" ? "failed" : "wants"}`}><div class="grow problem">
        <span class="mono small quiet">${one.range ? `${one.range.start.line}:${one.range.start.column}` : ""}</span><div><span class=${`status tone-${one.severity === "error" ? "failed" : "wants"}`}>${one.severity}</span> ${one.message}${elsewhere(one) && html`<div class="mono small">${one.file}</div>`}${one.help && html`<div class="quiet small">${one.help}</div>`}</div></div></li>`)}</ul>`
        : report && html`<p class="notice tone-done"><strong>No problems found.</strong></p>`}
      ${report?.graph && html`<${Graph} label="Graph of the text" layout=${report.graph} />`}
      ${!changed && page.name && !bad && html`<${DryRun} name=${page.name} inputs=${samples(page.recipe)} recipe=${page.recipe} example />`}
    </div>
  </div>`;
}

/**
 * Requests after a short time without typing; a response to an outdated request is dropped.
 * @param {() => Promise<any>} ask @param {(found: any) => void} good @param {(failure: any) => void} bad
 */
function afterAWhile(ask, good, bad) {
  let over = false;
  const timer = setTimeout(() => ask().then((found) => over || good(found), (failure) => over || bad(failure)), WAIT_MS);
  return () => {
    over = true;
    clearTimeout(timer);
  };
}

/** What stands in for inputs that have no default, so that a dry run can be shown. @param {any} recipe */
export function samples(recipe) {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const one of recipe?.inputs || []) {
    if (!one.required) continue;
    found[one.name] = one.enum?.[0] ?? { string: "example", integer: 1, number: 1, boolean: true, array: ["example"], object: {} }[/** @type {string} */ (one.type || "string")] ?? "example";
  }
  return found;
}

/** `example`: the inputs are examples. @param {{name: string, inputs: any, recipe?: any, example?: boolean, options?: any, scripted?: boolean, onForeseen?: (found: any) => void}} props */
export function DryRun({ name, inputs, recipe, example = false, options, scripted = false, onForeseen = () => {} }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const asked = writeJson([name, inputs, options || {}, scripted]);
  useEffect(() => {
    onForeseen(null);
    const ask = () => post(`/recipes/${encodeURIComponent(name)}/dry-run`, { inputs, options: options || {}, scripted });
    return afterAWhile(ask, (data) => { setFound(data); setError(null); onForeseen(data); }, (failure) => { setFound(null); setError(failure); });
  }, [asked]);
  return html`<section class="card padded form" aria-label="Dry run"><h2>What it would do</h2>
    <${Trouble} error=${error} />
    ${example && html`<p class="quiet small">With example inputs.</p>`}
    ${found && html`<${Foreseen} run=${found} recipe=${recipe} quiet=${example} />`}
    ${!found && !error && html`<p class="quiet">Computing …</p>`}</section>`;
}

/** The steps of a recipe and those inside them. @param {any[]} steps @returns {any[]} */
const all = (steps) => steps.flatMap((step) => [step, ...all(step.steps || [])]);

/** @param {{run: any, recipe: any, quiet: boolean}} props */
function Foreseen({ run, recipe, quiet }) {
  const steps = all(recipe?.steps || []);
  const files = [...new Set(steps.flatMap((step) => step.write_set || []))];
  const asks = steps.filter((step) => ["approve", "ask", "deliver", "approval"].includes(step.type));
  return html`<dl class="figures">
      <div><dt>Price at most</dt><dd><${Price} usd=${run.cost?.usd_max} why="A bound needs a budget or models with known prices." /></dd></div>
      <div><dt>Agents</dt><dd>${run.agents.min === run.agents.max ? run.agents.max : html`about ${run.agents.expected} <small>at most ${run.agents.max}</small>`}</dd></div>
      <div><dt>Questions</dt><dd>${asks.length}</dd></div></dl>
    <dl class="pairs"><dt>May write</dt><dd class="chips">${files.length ? files.map((name) => html`<code key=${name}>${name}</code> `) : "no file"}</dd>
      ${asks.length > 0 && html`<dt>Asks you</dt><dd class="chips">${asks.map((step) => html`<span class="chip" key=${step.id}>${step.id}</span>`)}</dd>`}</dl>
    <h3>Steps in order</h3>
    <ol class="waves">${run.waves.slice(0, 24).map((/** @type {string[]} */ wave, /** @type {number} */ i) => html`<li key=${i}><span class="quiet small number">${i + 1}.</span> ${wave.slice(0, 12).map((path) => html`<span class="chip" key=${path}>${path}</span>`)}${wave.length > 12 ? html`<span class="quiet small">and ${wave.length - 12} more</span>` : ""}</li>`)}</ol>
    ${run.conflicts_total > 0 && html`<p class="quiet small">${run.conflicts_total} pairs of steps use the same files and run one after the other.</p>`}
    ${(quiet ? [] : run.warnings).map((/** @type {string} */ one) => html`<p class="notice tone-wants" key=${one}>${one}</p>`)}
    ${!run.would_run && html`<p class="notice tone-failed"><strong>It cannot run now.</strong></p>`}`;
}

/** @param {{text: string, onInput: (text: string) => void, problems: any[]}} props */
function Editor({ text, onInput, problems }) {
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const lines = useMemo(() => text.split("\n"), [text]);
  const marks = useMemo(() => {
    /** @type {Record<number, {from: number, to: number, tone: string}[]>} */
    const found = {};
    for (const one of problems) {
      if (!one.range) continue;
      const { start, end } = one.range;
      for (let line = start.line; line <= Math.min(end.line, start.line + 20); line += 1) {
        const from = line === start.line ? start.column - 1 : 0;
        const to = line === end.line ? Math.max(end.column - 1, from + 1) : (lines[line - 1] || "").length;
        (found[line] ||= []).push({ from, to, tone: one.severity === "error" ? "wrong" : "odd" });
      }
    }
    return found;
  }, [problems, lines]);
  /** The first problem of each line, at its end. @type {Record<number, {text: string, tone: string}>} */
  const notes = {};
  for (const one of problems) if (one.range) notes[one.range.start.line] ||= { text: one.message, tone: one.severity === "error" ? "wrong-note" : "odd-note" };
  const indent = (/** @type {KeyboardEvent} */ event) => {
    // Tab leaves the field, as everywhere; Enter keeps the indentation.
    if (event.key !== "Enter" || !field.current) return;
    const at = field.current.selectionStart;
    const before = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
    const space = /^\s*/.exec(before)?.[0] || "";
    if (!space) return;
    event.preventDefault();
    field.current.setRangeText(`\n${space}`, at, field.current.selectionEnd, "end");
    onInput(field.current.value);
  };
  return html`<div class="editor">
    <div class="gutter" aria-hidden="true">${lines.map((_, i) => html`<span key=${i} class=${marks[i + 1]?.some((mark) => mark.tone === "wrong") ? "bad" : marks[i + 1] ? "warn" : ""}>${`${i + 1}\n`}</span>`)}</div>
    <div class="paper"><pre aria-hidden="true">${lines.map((line, i) => html`<span key=${i}>${paintLine(line, marks[i + 1] || [])}${notes[i + 1] && html`<span class=${`note ${notes[i + 1].tone}`}>${notes[i + 1].text}</span>`}${"\n"}</span>`)}</pre>
      <textarea ref=${field} aria-label="Text of the recipe" spellcheck="false" autocapitalize="off" value=${text} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} onKeyDown=${indent}></textarea></div>
  </div>`;
}
