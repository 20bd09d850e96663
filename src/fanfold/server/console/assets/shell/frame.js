/** The frame of every page: navigation, connection state, notices. */
import { html, useEffect, useState } from "../vendor/preact.js";
import { SHUT } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { connection } from "../live/stream.js";
import { duration, now } from "../text/format.js";
import { Dialog } from "../parts/dialog.js";
import { knownKeys, useKeys } from "./keys.js";
import { go, place } from "./route.js";
import { Notes } from "./notices.js";
import { usePhone } from "./width.js";

/** The name of the project's folder, which the server put into the page. */
const PROJECT = document.documentElement.dataset.project || "";
const MARK = new URL("../mark.svg", import.meta.url).pathname;
const PLACES = [
  { href: "/", name: "Home", icon: "M3 7.2 8 3l5 4.2V13H9.8V9.6H6.2V13H3z" },
  { href: "/recipes", name: "Recipes", icon: "M4 2.5h6.2L12.5 5v8.5H4zM6 7h4.5M6 9.6h4.5" },
  { href: "/runs", name: "Runs", icon: "M2.5 8h2.4l1.8-4.2 2.6 8.4L11 8h2.5" },
  { href: "/approvals", name: "Approvals", icon: "M2.8 8.4 6 11.6l7.2-7.2" },
  { href: "/search", name: "Search", icon: "M7 2.8a4.2 4.2 0 1 1 0 8.4 4.2 4.2 0 0 1 0-8.4zm3.2 7.4 3 3" },
  { href: "/agents", name: "Agents", icon: "M8 2.6a2.4 2.4 0 1 1 0 4.8 2.4 2.4 0 0 1 0-4.8zM3.2 13.2c.5-2.7 2.3-4 4.8-4s4.3 1.3 4.8 4" },
  { href: "/system", name: "System", icon: "M2.6 4.8h6m3 0h1.8M2.6 11.2h1.8m3 0h6M10 3.2v3.2M5.9 9.6v3.2" },
];

/** The places that a phone shows; the others are behind "More". */
const ON_PHONE = ["/", "/runs", "/approvals"];

/** @param {{children?: any}} props */
export function Frame({ children }) {
  const [help, setHelp] = useState(false);
  const [more, setMore] = useState(false);
  const phone = usePhone();
  const waiting = useResource("/approvals", true);
  useKeys([
    { key: "?", what: "Show these keys", act: () => setHelp(true) },
    { key: "/", what: "Search outputs", act: () => (place.peek().path === "/search" ? document.getElementById("words")?.focus() : go("/search")) },
  ]);
  const asked = waiting.data?.items?.length || 0;
  const current = place.value.path;
  const state = connection.value;
  const away = ["live", "opening"].includes(state.state) ? "" : reason(state);
  return html`<div class="frame">
    <header class="side">
      <a class="brand" href="/"><img src=${MARK} alt="" width="24" height="24" /><span>Fanfold${PROJECT && html`<small title="Project">${PROJECT}</small>`}</span></a>
      <nav aria-label="Places"><ul>
        ${(phone ? ON_PHONE.map((href) => /** @type {(typeof PLACES)[0]} */ (PLACES.find((one) => one.href === href))) : PLACES).map((one) => html`<li key=${one.href}><a href=${one.href} aria-current=${isHere(one.href, current) ? "page" : undefined}>
          <svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${one.icon} /></svg>
          ${one.name}${one.href === "/approvals" && asked > 0 && html`<span class="badge" aria-label=${`${asked} waiting`}>${asked}</span>`}
        </a></li>`)}
        ${phone && html`<li><button class="more-places" aria-haspopup="dialog" onClick=${() => setMore(true)}><svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" aria-hidden="true"><path d="M3 4.5h10M3 8h10M3 11.5h10" /></svg>Menu</button></li>`}
      </ul></nav>
      <div class="side-foot">
        <div class="row"><span class=${`pulse ${away ? "lost" : state.state}`}>${away ? "Not connected" : state.state === "live" ? "Live" : "Connecting"}</span>
          <button class="button plain small" onClick=${() => setHelp(true)} aria-label="Keys" title="Keys (?)">?</button></div>
        <${ThemeChoice} />
      </div>
    </header>
    <div>
      ${away && html`<div class="lost-banner" role="alert"><span>${away}</span></div>`}
      <main id="main" tabindex="-1">${children}</main>
    </div>
    <${Notes} />
    ${more && html`<${Dialog} title="Menu" onClose=${() => setMore(false)}><nav aria-label="More places"><ul class="list places">${PLACES.filter((one) => !ON_PHONE.includes(one.href)).map((one) => html`<li key=${one.href}><a href=${one.href} onClick=${() => setMore(false)}>${one.name}</a></li>`)}</ul></nav><${ThemeChoice} /></${Dialog}>`}
    ${help && html`<${Dialog} title="Keys" onClose=${() => setHelp(false)}>
      <dl class="pairs">${spoken(knownKeys()).map((one) => html`<dt key=${one.key}><kbd>${one.key}</kbd></dt><dd>${one.what}</dd>`)}</dl>
    </${Dialog}>`}
  </div>`;
}

/** Why the page does not move any more. @param {{state: string, since: number}} connected */
function reason({ state, since }) {
  const past = duration(Math.max(0, now.value - since));
  if (state === "shut") return `${SHUT.message} ${SHUT.hint} What you see is from ${past} ago.`;
  if (state === "full") return `Too many pages follow this server. This page is from ${past} ago; close others, and it continues by itself.`;
  return `The server stopped responding ${past} ago. This page is from then; it continues by itself when the server is back.`;
}

/** Keys by their names, and what the browser does with Esc on every page. @param {import("./keys.js").Key[]} keys */
function spoken(keys) {
  const named = keys.map((one) => ({ ...one, key: one.key === "Escape" ? "Esc" : one.key }));
  return named.some((one) => one.key === "Esc") ? named : [...named, { key: "Esc", what: "Close what is open" }];
}

/** @param {string} href @param {string} path */
const isHere = (href, path) => (href === "/" ? path === "/" : path === href || path.startsWith(`${href}/`) || (href === "/runs" && path.startsWith("/compare")));

/** Light, dark, or as the system has it. */
export function ThemeChoice() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("fanfold-theme", theme);
    } catch {
      // Without storage the choice holds for this page.
    }
  }, [theme]);
  return html`<label class="row">Theme
    <select value=${theme} onChange=${(/** @type {any} */ event) => setTheme(event.target.value)} style=${{ width: "auto", minHeight: "1.6rem", padding: "0 .3rem" }}>
      <option value="auto">system</option><option value="light">light</option><option value="dark">dark</option>
    </select></label>`;
}

/** The head of a page; its title is the document's, and who listens hears it. @param {{title: string, lead?: any, actions?: any, children?: any}} props */
export function PageHead({ title, lead, actions, children }) {
  useTitle(title);
  return html`<div class="page-head"><h1 tabindex="-1">${title}</h1>${children}${actions && html`<div class="actions">${actions}</div>`}${lead && html`<p class="lead">${lead}</p>`}</div>`;
}

/** @param {string} title */
export function useTitle(title) {
  useEffect(() => {
    document.title = [title, PROJECT, "Fanfold"].filter(Boolean).join(" · ");
  }, [title]);
}
