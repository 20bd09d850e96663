/** Answers a question of a run. The answer is bound to what was shown. */
import { html, useState } from "../vendor/preact.js";
import { post, quoted } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { notify, notifyError } from "../shell/notices.js";
import { asText, exact, msOf } from "../text/format.js";
import { readJson, writeJson } from "../text/json.js";
import { Markdown } from "../text/markdown.js";
import { CopyAs } from "./copy-as.js";
import { Diff } from "./diff.js";

/** The question that waits at a step, wherever the step is shown: on the page of its run or of one above. @param {{runs: string[], path: string, onAnswered: () => void}} props */
export function AnswerHere({ runs, path, onAnswered }) {
  const found = useResource("/approvals", true);
  const asked = found.data?.items.find((/** @type {any} */ one) => one.step === path && runs.some((run) => one.run_id.startsWith(run)));
  return asked ? html`<${AnswerForm} key=${asked.seen} run=${asked.run_id} path=${path} asked=${asked} onAnswered=${() => { found.reload(); onAnswered(); }} />` : null;
}

/** @param {{run: string, path: string, asked: any, onAnswered: () => void}} props */
export function AnswerForm({ run, path, asked, onAnswered }) {
  const [comment, setComment] = useState("");
  const [edited, setEdited] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState("");
  const question = asked.message ?? asked.question ?? "";
  const shown = asked.shown ?? asked.show;
  const choices = asked.choices || [];
  const isQuestion = asked.kind === "question";
  const isText = typeof shown === "string";
  const hasShown = shown !== undefined && shown !== null && shown !== "";
  const problem = edited !== null && !isText && !isJson(edited) ? "This is not valid JSON." : "";
  const given = edited === null || edited === asText(shown) || problem ? {} : { edit: isText ? edited : readJson(edited) };
  const send = async (/** @type {string} */ word, /** @type {any} */ body) => {
    setBusy(word);
    try {
      const place = isQuestion ? "answers" : "approvals";
      const done = await post(`/runs/${run}/${place}/${quoted(path)}`, body);
      notify(`${path}: ${done.decision || word}.${done.detached ? " The run continues in the background." : ""}`);
      onAnswered();
    } catch (error) {
      if (/** @type {any} */ (error).code === "approval.changed") {
        notify("It has changed. Read it again, then answer.", { tone: "wants" });
        onAnswered();
      } else notifyError(error);
    }
    setBusy("");
  };
  const decide = (/** @type {string} */ decision, choice = "") => send(choice || decision, { decision, ...(choice && { choice }), ...(comment && { comment }), ...(decision === "approve" && given), seen: asked.seen });
  return html`<form class="form answer" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); if (isQuestion) send("answered", { text: comment, seen: asked.seen }); }}>
    <div class="asked"><${Markdown} text=${question} /></div>
    ${hasShown && edited === null && html`<div class="shown" tabindex="0" role="region" aria-label=${`What ${path} shows`}>${isText ? html`<${Shown} text=${shown} command=${`fanfold inspect ${run} ${path}`} />` : html`<pre class="block">${asText(shown)}</pre>`}</div>`}
    ${hasShown && !isQuestion && edited !== null && html`<div class="field"><label for=${`edit-${path}`}>Text for the next steps</label><textarea id=${`edit-${path}`} rows="8" class="mono" value=${edited} onInput=${(/** @type {any} */ event) => setEdited(event.target.value)} aria-invalid=${problem ? "true" : undefined}></textarea>
      <span class="hint">The next steps get this text with your approval.${problem && html` <span class="stale">${problem}</span>`}</span></div>`}
    ${hasShown && !isQuestion && html`<div><button type="button" class="as-link small" onClick=${() => setEdited(edited === null ? asText(shown) : null)}>${edited === null ? "Edit first" : "Discard the edit"}</button></div>`}
    ${asked.next?.length > 0 && html`<div><h3>What runs next</h3><ul>${asked.next.map((/** @type {any} */ one) => html`<li key=${one.path}><code>${one.path}</code>${one.writes?.length && !one.needs ? html` may write ${one.writes.map((/** @type {string} */ name) => html`<code key=${name}>${name}</code> `)}` : ""}${one.needs ? html`<div class="effects"><code>${one.needs}</code></div>` : ""}</li>`)}</ul></div>`}
    <${TimeUp} asked=${asked} />
    ${!(isQuestion && choices.length) && html`<div class="field"><label for=${`comment-${path}`}>${isQuestion ? "Your answer" : "Comment"}</label><textarea id=${`comment-${path}`} class=${isQuestion ? "" : "growing"} rows=${isQuestion ? 2 : 1} value=${comment} onInput=${(/** @type {any} */ event) => setComment(event.target.value)} placeholder=${isQuestion ? "" : "Optional; goes into the log"}></textarea>
      ${isQuestion && asked.schema !== null && html`<span class="hint">JSON that fits <code>${writeJson(asked.schema)}</code></span>`}</div>`}
    <div class="actions">
      ${isQuestion ? choices.length ? choices.map((/** @type {string} */ choice) => html`<button type="button" key=${choice} class="button" disabled=${busy !== ""} onClick=${() => send(choice, { text: choice, seen: asked.seen })}>${choice}</button>`) : html`<button class="button primary" disabled=${busy !== "" || !comment.trim()}>Answer</button>`
        : choices.length ? choices.map((/** @type {string} */ choice) => html`<button type="button" key=${choice} class="button primary" disabled=${busy !== "" || problem !== ""} onClick=${() => decide("approve", choice)}>${choice}</button>`)
          : html`<button type="button" class="button primary" disabled=${busy !== "" || problem !== ""} onClick=${() => decide("approve")}>Approve</button>`}
      ${!isQuestion && html`<button type="button" class="button danger" disabled=${busy !== ""} onClick=${() => decide("reject")}>Reject</button>`}
      <${CopyAs} ...${copied(isQuestion, choices, { run, step: path, comment, seen: asked.seen })} />
    </div>
  </form>`;
}

/** A text that a question shows; a patch in it as a diff, and what is before a patch as it is. @param {{text: string, command: string}} props */
function Shown({ text, command }) {
  const at = text.search(/^diff --git /m);
  if (at < 0) return html`<${Markdown} text=${text} />`;
  return html`${at > 0 && html`<pre class="as-is">${text.slice(0, at).trimEnd()}</pre>`}<${Diff} patch=${text.slice(at)} command=${command} />`;
}

/** What happens to a question without an answer. @param {{asked: any}} props */
function TimeUp({ asked }) {
  const due = msOf(asked.due_at);
  if (due === null) return null;
  return html`<p class="quiet small">${asked.default === null ? `It fails if it is not answered by ${exact(due)}.` : html`At ${exact(due)} the default applies: <code>${asked.default}</code>`}</p>`;
}

/** The possible answers, each as a command to copy. @param {boolean} isQuestion @param {string[]} choices @param {any} words */
function copied(isQuestion, choices, words) {
  const answer = isQuestion ? { run: words.run, step: words.step, text: words.comment } : words;
  const action = isQuestion ? "answer" : "approve";
  const chosen = choices.map((choice) => ({ name: choice, action, words: { ...answer, ...(isQuestion ? { text: choice } : { choice }) } }));
  if (isQuestion) return { action, words: answer, others: chosen };
  return { action, words: choices.length ? { ...answer, choice: choices[0] } : answer, others: [...chosen, { name: "reject", action: "reject", words: answer }] };
}

/** @param {string} text */
function isJson(text) {
  try {
    readJson(text);
    return true;
  } catch {
    return false;
  }
}
