/** The form that runs a recipe: a field for each input, what it would do and cost, and what it needs permission for. */
import { html, useEffect, useState } from "../vendor/preact.js";
import { DEMOS } from "../demos.js";
import { get, post } from "../live/api.js";
import { go, query } from "../shell/route.js";
import { asText } from "../text/format.js";
import { readJson, wholeNumber } from "../text/json.js";
import { CopyAs } from "./copy-as.js";
import { Effects } from "./effects.js";
import { DryRun, samples } from "./recipe-source.js";
import { Empty, Trouble } from "./states.js";

/** @param {{page: any}} props */
export function RunForm({ page }) {
  const inputs = page.recipe?.inputs || [];
  const demo = DEMOS.find((one) => one.recipe === page.name);
  const [values, setValues] = useState(/** @type {Record<string, string>} */ (Object.fromEntries(inputs.map((/** @type {any} */ one) => [one.name, typed(one, one.default)]))));
  const [options, setOptions] = useState({ model: "", max_concurrency: "", budget_usd: "" });
  const [scripted, setScripted] = useState(false);
  const from = query.value.get("from");
  useEffect(() => {
    if (!from) return;
    get(`/runs/${encodeURIComponent(from)}/recipe`).then((recorded) => {
      setValues((before) => ({ ...before, ...Object.fromEntries(inputs.filter((/** @type {any} */ one) => one.name in recorded.inputs).map((/** @type {any} */ one) => [one.name, typed(one, recorded.inputs[one.name])])) }));
      if (demo && recorded.scripted) setScripted(true);
    }, setError);
  }, [from]);
  const [allowed, setAllowed] = useState("");
  const [foreseen, setForeseen] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  if (!page.recipe) return html`<${Empty} title="It cannot be run yet"><p>The recipe has errors; <a href=${`/recipes/${page.name}?view=source`}>Source</a> shows them.</p></${Empty}>`;
  const wrong = Object.fromEntries(inputs.map((/** @type {any} */ one) => [one.name, problemOf(one, values[one.name] ?? "")]));
  const missing = inputs.some((/** @type {any} */ one) => wrong[one.name]);
  const lacking = inputs.filter((/** @type {any} */ one) => wrong[one.name] === "required").map((/** @type {any} */ one) => one.name);
  const given = missing ? {} : bound(inputs, values);
  const chosen = { ...(options.model && { model: options.model }), ...(options.max_concurrency && { max_concurrency: Number(options.max_concurrency) }), ...(options.budget_usd && { budget_usd: Number(options.budget_usd) }) };
  const needs = foreseen?.needs || [];
  const agreed = needs.length > 0 && allowed === foreseen.seen; // an answer counts for exactly what was shown
  const begun = { recipe: page.name, inputs: given, options: chosen, ...(scripted && demo && { script: demo.script }) };
  const run = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const { run_id } = await post("/runs", { ...begun, yes: agreed, seen: foreseen?.seen });
      go(`/runs/${run_id}`);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<div class="two">
    <form class="card padded form" onSubmit=${run}>
      ${from && html`<p class="quiet small">Inputs of run <a class="mono" href=${`/runs/${from}`}>${from}</a></p>`}
      ${inputs.map((/** @type {any} */ one) => html`<${Field} key=${one.name} input=${one} value=${values[one.name] ?? ""} problem=${wrong[one.name]} onInput=${(/** @type {string} */ value) => setValues((before) => ({ ...before, [one.name]: value }))} />`)}
      ${!inputs.length && html`<p class="quiet">This recipe takes no input.</p>`}
      <details><summary>Model, slots, budget</summary><div class="form options">
        <${Plain} id="model" name="Model" hint="Empty: the one that is configured" value=${options.model} onInput=${(/** @type {string} */ value) => setOptions((before) => ({ ...before, model: value }))} />
        <${Plain} id="slots" name="Steps at once" type="number" hint="Empty: as configured" value=${options.max_concurrency} onInput=${(/** @type {string} */ value) => setOptions((before) => ({ ...before, max_concurrency: value }))} />
        <${Plain} id="budget" name="Budget in dollars" type="number" hint="Empty: none. The run pauses when it is reached" value=${options.budget_usd} onInput=${(/** @type {string} */ value) => setOptions((before) => ({ ...before, budget_usd: value }))} />
      </div></details>
      ${needs.length > 0 && html`<fieldset class="leave"><legend>It needs your permission</legend><${Effects} totals=${foreseen.totals} needs=${needs} />
        <label class="check"><input type="checkbox" checked=${agreed} onChange=${() => setAllowed(agreed ? "" : foreseen.seen)} /> Allow this</label></fieldset>`}
      ${demo && html`<label class="check"><input type="checkbox" checked=${scripted} onChange=${() => { setScripted(!scripted); if (!scripted) setValues(withExamples(inputs, values, demo.inputs)); }} /> Scripted agents: no key is needed; their texts were prepared</label>`}
      <${Trouble} error=${error} />
      <div class="actions"><button class="button primary" disabled=${busy || missing || !foreseen || (needs.length > 0 && !agreed)}>${busy ? "Starting …" : "Run"}</button><${CopyAs} action="run" words=${{ ...begun, yes: agreed }} />${lacking.length > 0 && html`<span class="quiet small">Enter ${lacking.join(", ")}.</span>`}</div>
    </form>
    ${missing ? html`<${DryRun} key="example" name=${page.name} inputs=${samples(page.recipe)} recipe=${page.recipe} options=${chosen} scripted=${scripted} example />` : html`<${DryRun} key="given" name=${page.name} inputs=${given} recipe=${page.recipe} options=${chosen} scripted=${scripted} onForeseen=${setForeseen} />`}
  </div>`;
}

/** What a scripted run is about, where nothing was typed. @param {any[]} inputs @param {Record<string, string>} values @param {Record<string, unknown>} examples */
function withExamples(inputs, values, examples) {
  const found = { ...values };
  for (const one of inputs)
    if (one.name in examples && [undefined, "", typed(one, one.default)].includes(values[one.name])) found[one.name] = typed(one, examples[one.name]);
  return found;
}

/** @param {any} props */
function Field({ input, value, problem, onInput }) {
  const id = `input-${input.name}`;
  const kind = input.type || "string";
  const control = input.enum ? html`<select id=${id} value=${value} onChange=${(/** @type {any} */ event) => onInput(event.target.value)}>${!input.required && html`<option value=""></option>`}${input.enum.map((/** @type {any} */ one) => html`<option key=${asText(one)} value=${asText(one)}>${asText(one)}</option>`)}</select>`
    : kind === "boolean" ? html`<select id=${id} value=${value || "false"} onChange=${(/** @type {any} */ event) => onInput(event.target.value)}><option value="true">yes</option><option value="false">no</option></select>`
      : kind === "integer" || kind === "number" ? html`<input id=${id} type="number" step=${kind === "integer" ? 1 : "any"} value=${value} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} aria-describedby=${`${id}-hint`} />`
        : html`<textarea id=${id} rows=${kind === "string" ? 1 : Math.min(12, Math.max(3, value.split("\n").length))} class=${kind === "string" ? "one-line" : "mono"} value=${value} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} aria-describedby=${`${id}-hint`} aria-invalid=${problem && value ? "true" : undefined}></textarea>`;
  return html`<div class="field"><label for=${id}>${input.name}${input.required ? "" : html` <span class="quiet small">optional</span>`}</label>${control}
    <span class="hint" id=${`${id}-hint`}>${input.description}${kind === "array" ? " One line for each, or JSON." : kind === "object" ? " As JSON." : ""}${problem && value ? html` <span class="stale">${problem}</span>` : ""}</span></div>`;
}

/** @param {any} props */
const Plain = ({ id, name, hint, value, onInput, type = "text" }) => html`<div class="field"><label for=${id}>${name}</label><input id=${id} type=${type} min="0" step="any" value=${value} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} /><span class="hint">${hint}</span></div>`;

/** A value as the user would type it: a list of texts has a line for each. @param {any} input @param {any} value */
function typed(input, value) {
  if (value === null || value === undefined) return "";
  const lines = input.type === "array" && Array.isArray(value) && value.length > 0 && value.every((one) => typeof one === "string" && one.trim() === one && one !== "" && !/\n/.test(one));
  return lines && !value[0].startsWith("[") ? value.join("\n") : asText(value);
}

/** @param {any} input @param {string} text */
function problemOf(input, text) {
  if (!text.trim()) return input.required && input.type !== "boolean" ? "required" : "";
  try {
    valueOf(input, text);
    return "";
  } catch {
    return input.type === "object" ? "This is not a JSON object." : "This does not fit.";
  }
}

/** @param {any} input @param {string} text @returns {unknown} */
function valueOf(input, text) {
  const kind = input.type || "string";
  if (input.enum) return input.enum.find((/** @type {any} */ one) => asText(one) === text) ?? text;
  if (kind === "string") return text;
  if (kind === "boolean") return text === "true";
  if (kind === "integer" || kind === "number") {
    const n = Number(text);
    if (!Number.isFinite(n) || (kind === "integer" && !Number.isInteger(n))) throw new Error("no number");
    return wholeNumber(n, text.trim());
  }
  if (kind === "array" && !text.trim().startsWith("[")) return text.split("\n").map((line) => line.trim()).filter(Boolean);
  const value = readJson(text);
  if (kind === "array" ? !Array.isArray(value) : typeof value !== "object" || value === null) throw new Error("not the type");
  return value;
}

/** @param {any[]} inputs @param {Record<string, string>} values */
function bound(inputs, values) {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const one of inputs) {
    const text = values[one.name] ?? "";
    if (text.trim() || one.type === "boolean") found[one.name] = valueOf(one, text);
  }
  return found;
}
