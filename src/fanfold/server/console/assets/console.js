/** The console: starts the stream, the keys and the routes, and shows the page that the address names. */
import { html, render, useEffect } from "./vendor/preact.js";
import { startStream } from "./live/stream.js";
import { Agent, Agents } from "./pages/agents.js";
import { Approvals } from "./pages/approvals.js";
import { Compare } from "./pages/compare.js";
import { Comparisons } from "./pages/comparisons.js";
import { Home } from "./pages/home.js";
import { Recipe } from "./pages/recipe.js";
import { Recipes } from "./pages/recipes.js";
import { Run } from "./pages/run.js";
import { Runs } from "./pages/runs.js";
import { Search } from "./pages/search.js";
import { Step } from "./pages/step.js";
import { System } from "./pages/system.js";
import { Workers } from "./pages/workers.js";
import { Boundary, Empty } from "./parts/states.js";
import { Frame, PageHead } from "./shell/frame.js";
import { startKeys } from "./shell/keys.js";
import { place, startRoutes } from "./shell/route.js";
import { announce } from "./shell/notices.js";
import { startSigns } from "./text/visible.js";

/** @type {[RegExp, any][]} */
const PAGES = [
  [/^\/$/, Home],
  [/^\/recipes$/, Recipes],
  [/^\/recipes\/([^/]+)$/, Recipe],
  [/^\/runs$/, Runs],
  [/^\/runs\/([^/]+)$/, Run],
  [/^\/runs\/([^/]+)\/steps\/(.+)$/, Step],
  [/^\/compare$/, Comparisons],
  [/^\/compare\/([^/]+)\/([^/]+)$/, Compare],
  [/^\/approvals$/, Approvals],
  [/^\/search$/, Search],
  [/^\/agents$/, Agents],
  [/^\/agents\/(.+)$/, Agent],
  [/^\/system$/, System],
  [/^\/workers$/, Workers],
];

function Console() {
  const path = place.value.path;
  useEffect(() => {
    announce(document.title);
    // A page that put the focus somewhere itself knows better.
    const main = document.querySelector("main");
    if (!main?.contains(document.activeElement) || document.activeElement === main) main?.focus({ preventScroll: true });
  }, [path]);
  for (const [pattern, Page] of PAGES) {
    const found = pattern.exec(path);
    const parts = found && decoded(found.slice(1));
    if (parts) {
      const [first = "", second = ""] = parts;
      return html`<${Frame}><${Boundary} of=${path + place.value.search}><${Page} key=${path} first=${first} second=${second} /></${Boundary}></${Frame}>`;
    }
  }
  return html`<${Frame}><div class="page"><${PageHead} title="No such page" /><${Empty} title="There is nothing at this address"><p>The menu has everything there is.</p><a class="button primary" href="/">Home</a></${Empty}></div></${Frame}>`;
}

/** Null for what is no text. @param {string[]} parts */
function decoded(parts) {
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return null;
  }
}

startSigns();
startStream();
startKeys();
startRoutes();
const root = /** @type {Element} */ (document.getElementById("root"));
root.textContent = "";
render(html`<${Console} />`, root);
