/** Where the page is: the address is the state, so that every view can be kept, sent and opened again. */
import { computed, signal } from "../vendor/preact.js";

const here = () => ({ path: location.pathname, search: location.search });
export const place = signal(here());
export const query = computed(() => new URLSearchParams(place.value.search));

/** @param {string} href @param {{replace?: boolean}} [how] */
export function go(href, how = {}) {
  if (href === location.pathname + location.search) return;
  const moved = new URL(href, location.href).pathname !== location.pathname;
  history[how.replace ? "replaceState" : "pushState"](null, "", href);
  place.value = here();
  if (moved) scrollTo(0, 0);
}

/** Change words of the address's query; null takes one away. @param {Record<string, string | number | null>} words */
export function setQuery(words, how = { replace: true }) {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(words))
    if (value === null || value === "") next.delete(name);
    else next.set(name, String(value));
  const text = next.toString();
  go(location.pathname + (text ? `?${text}` : ""), how);
}

/** The same address with other words, for links. @param {Record<string, string | null>} words */
export function hrefWith(words) {
  const next = new URLSearchParams(place.value.search);
  for (const [name, value] of Object.entries(words))
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  const text = next.toString();
  return place.value.path + (text ? `?${text}` : "");
}

/** Links of ours change the page without loading it anew. */
export function startRoutes() {
  addEventListener("popstate", () => (place.value = here()));
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = /** @type {Element} */ (event.target).closest?.("a[href]");
    if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute("download")) return;
    if (link.origin !== location.origin || link.pathname.startsWith("/api/") || link.getAttribute("href")?.startsWith("#")) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
